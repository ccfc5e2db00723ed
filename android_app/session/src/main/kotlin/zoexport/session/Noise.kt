package zoexport.session

/** Computes the noise specification (docs/rng.md), for golden checks. Unsigned numbers pass by their bits. */
object Noise {
    /** Returns the four words of element block [block]. */
    fun words(seed: Long, block: Int, tensorId: Int, query: Int, step: Int): List<UInt> =
        Native.words(seed, block, tensorId, query, step).map { it.toUInt() }

    /** Returns normals [first] ... [first] + [count] - 1 of a tensor's perturbation. */
    fun normals(seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int): FloatArray =
        Native.noise(false, seed, tensorId, query, step, first, count).floats(0)

    /** Returns Rademacher signs, 1 or -1, of the same elements. */
    fun signs(seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int): FloatArray =
        Native.noise(true, seed, tensorId, query, step, first, count).floats(0)

    /** Returns the order of [count] examples in an epoch. */
    fun permutation(seed: Long, epoch: Int, count: Int): List<Int> =
        Native.permutation(seed, epoch, count).map { it.toInt() }
}
