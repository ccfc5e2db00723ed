/// Copies values of `size` bytes with gaps between them (Core ML may pad rows) to where they are row-major without gaps.
///
/// - Parameters:
///   - strides: values from one to the next of a dimension.
///   - target: exactly as many bytes as the values have.
func copyDense(
    from source: UnsafeRawPointer, shape: [Int], strides: [Int], size: Int, to target: UnsafeMutableRawBufferPointer
) {
    // Trailing dimensions without gaps are copied as one run.
    var run = 1
    var outer = shape.count
    while outer > 0, strides[outer - 1] == run || shape[outer - 1] == 1 {
        outer -= 1
        run *= shape[outer]
    }
    let rows = shape[..<outer].reduce(1, *)
    for row in 0..<rows {
        var rest = row
        var offset = 0
        for dimension in (0..<outer).reversed() {
            offset += rest % shape[dimension] * strides[dimension]
            rest /= shape[dimension]
        }
        target.baseAddress!.advanced(by: row * run * size)
            .copyMemory(from: source.advanced(by: offset * size), byteCount: run * size)
    }
}

/// The strides of row-major values without gaps.
func denseStrides(_ shape: [Int]) -> [Int] {
    var strides = shape
    var next = 1
    for dimension in shape.indices.reversed() {
        strides[dimension] = next
        next *= shape[dimension]
    }
    return strides
}
