package zoexport.session

/** The noise specification (docs/rng.md), for golden checks. */
object Noise {
    init {
        Library.load()
    }

    /** The four words of element block [block]. */
    fun words(seed: ULong, block: UInt, tensorId: UInt, query: UInt, step: UInt): List<UInt> =
        nativeWords(seed.toLong(), block.toInt(), tensorId.toInt(), query.toInt(), step.toInt()).map { it.toUInt() }

    /** Normals [first] ... [first] + [count] - 1 of a tensor's perturbation. */
    fun normals(seed: ULong, tensorId: UInt, query: UInt, step: UInt, first: Long, count: Int): FloatArray =
        nativeNormals(
            seed.toLong(), tensorId.toInt(), query.toInt(), step.toInt(), first.notNegative("first"),
            count.toLong().notNegative("count").toInt(),
        )

    /** Rademacher signs, 1 or -1, of the same elements. */
    fun signs(seed: ULong, tensorId: UInt, query: UInt, step: UInt, first: Long, count: Int): FloatArray =
        nativeSigns(
            seed.toLong(), tensorId.toInt(), query.toInt(), step.toInt(), first.notNegative("first"),
            count.toLong().notNegative("count").toInt(),
        )

    /** The order of [count] examples in an epoch. */
    fun permutation(seed: ULong, epoch: UInt, count: Int): IntArray =
        nativePermutation(seed.toLong(), epoch.toInt(), count.toLong().notNegative("count").toInt())

    @JvmStatic
    private external fun nativeWords(seed: Long, block: Int, tensorId: Int, query: Int, step: Int): IntArray

    @JvmStatic
    private external fun nativeNormals(
        seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int,
    ): FloatArray

    @JvmStatic
    private external fun nativeSigns(
        seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int,
    ): FloatArray

    @JvmStatic
    private external fun nativePermutation(seed: Long, epoch: Int, count: Int): IntArray
}
