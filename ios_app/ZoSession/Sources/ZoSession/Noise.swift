import CZoexport

/// The noise specification (docs/rng.md), for golden checks.
public enum Noise {
    /// The four words of an element block.
    public static func words(seed: UInt64, block: UInt32, tensorID: UInt32, query: UInt32, step: UInt32) -> [UInt32] {
        var words = [UInt32](repeating: 0, count: 4)
        zo_rng_words(seed, block, tensorID, query, step, &words)
        return words
    }

    /// Normals `first` ... `first + count - 1` of a tensor's perturbation.
    public static func normals(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        [Float](unsafeUninitializedCapacity: count) { buffer, written in
            zo_rng_normals(seed, tensorID, query, step, first, UInt64(count), buffer.baseAddress)
            written = count
        }
    }

    /// Rademacher signs, 1 or -1, of the same elements.
    public static func signs(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        [Float](unsafeUninitializedCapacity: count) { buffer, written in
            zo_rng_signs(seed, tensorID, query, step, first, UInt64(count), buffer.baseAddress)
            written = count
        }
    }

    /// The order of `count` examples in an epoch.
    public static func permutation(seed: UInt64, epoch: UInt32, count: Int) -> [UInt32] {
        [UInt32](unsafeUninitializedCapacity: count) { buffer, written in
            zo_rng_permutation(seed, epoch, UInt32(count), buffer.baseAddress)
            written = count
        }
    }
}
