import CZoexport

/// The noise specification (docs/rng.md), for golden checks.
public enum Noise {
    /// Computes the four words of an element block.
    public static func words(seed: UInt64, block: UInt32, tensorID: UInt32, query: UInt32, step: UInt32) -> [UInt32] {
        filled(4) { zo_rng_words(seed, block, tensorID, query, step, $0) }
    }

    /// Computes normals `first` ... `first + count - 1` of a tensor's perturbation.
    public static func normals(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        filled(count) { zo_rng_normals(seed, tensorID, query, step, first, UInt64(count), $0) }
    }

    /// Computes Rademacher signs, 1 or -1, of the same elements.
    public static func signs(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        filled(count) { zo_rng_signs(seed, tensorID, query, step, first, UInt64(count), $0) }
    }

    /// Computes the order of `count` examples in an epoch.
    public static func permutation(seed: UInt64, epoch: UInt32, count: Int) -> [UInt32] {
        filled(count) { zo_rng_permutation(seed, epoch, UInt32(count), $0) }
    }

    private static func filled<Value>(_ count: Int, _ fill: (UnsafeMutablePointer<Value>) -> Void) -> [Value] {
        [Value](unsafeUninitializedCapacity: count) {
            if count > 0 { fill($0.baseAddress!) }
            $1 = count
        }
    }
}
