import Cases
import CZoexport
import Foundation
import XCTest

/// graphs/golden/rng.json, whose folder `ZOEXPORT_GOLDEN` names.
final class NoiseTests: XCTestCase {
    private struct Golden: Decodable {
        struct Answer: Decodable {
            let counter: [String]
            let key: [String]
            let result: [String]
        }

        struct Stream: Decodable {
            let seed: String
            let tensorId: UInt32
            let query: UInt32
            let step: UInt32
            let start: UInt64
            let words: [String]
            let normals: [String]
            let signs: [Float]
        }

        struct Permutation: Decodable {
            let seed: String
            let epoch: UInt32
            let n: Int
            let order: [UInt32]
        }

        let spec: String
        let knownAnswers: [Answer]
        let streams: [Stream]
        let permutations: [Permutation]
    }

    func testTheNoiseIsTheSpecification() throws {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        let golden = try decoder.decode(Golden.self, from: Data(contentsOf: Case.file("ZOEXPORT_GOLDEN").appendingPathComponent("rng.json")))
        XCTAssertEqual(golden.spec, "zoexport-philox4x32-10/1")
        XCTAssertTrue(golden.streams.count >= 10 && golden.permutations.count >= 5)
        for known in golden.knownAnswers {
            let counter = known.counter.map { UInt32($0, radix: 16)! }
            let seed = UInt64(known.key[1] + known.key[0], radix: 16)!
            let words = Noise.words(
                seed: seed, block: counter[0], tensorID: counter[1], query: counter[2], step: counter[3]
            )
            XCTAssertEqual(words.map(hexadecimal), known.result)
        }
        for stream in golden.streams {
            let seed = UInt64(stream.seed, radix: 16)!
            let words = stream.words.indices.map { index in
                let element = stream.start + UInt64(index)
                let block = Noise.words(
                    seed: seed, block: UInt32(element / 4), tensorID: stream.tensorId, query: stream.query,
                    step: stream.step
                )
                return hexadecimal(block[Int(element % 4)])
            }
            XCTAssertEqual(words, stream.words)
            let normals = Noise.normals(
                seed: seed, tensorID: stream.tensorId, query: stream.query, step: stream.step, first: stream.start,
                count: stream.normals.count
            )
            XCTAssertEqual(normals.map(bits), stream.normals)
            let signs = Noise.signs(
                seed: seed, tensorID: stream.tensorId, query: stream.query, step: stream.step, first: stream.start,
                count: stream.signs.count
            )
            XCTAssertEqual(signs, stream.signs)
        }
        for known in golden.permutations {
            let seed = UInt64(known.seed, radix: 16)!
            XCTAssertEqual(Noise.permutation(seed: seed, epoch: known.epoch, count: known.n), known.order)
        }
    }
}

/// The noise specification (docs/noise.md) as the library computes it.
private enum Noise {
    static func words(seed: UInt64, block: UInt32, tensorID: UInt32, query: UInt32, step: UInt32) -> [UInt32] {
        filled(4) { zo_rng_words(seed, block, tensorID, query, step, $0) }
    }

    static func normals(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        filled(count) { zo_rng_normals(seed, tensorID, query, step, first, UInt64(count), $0) }
    }

    static func signs(
        seed: UInt64, tensorID: UInt32, query: UInt32, step: UInt32, first: UInt64, count: Int
    ) -> [Float] {
        filled(count) { zo_rng_signs(seed, tensorID, query, step, first, UInt64(count), $0) }
    }

    static func permutation(seed: UInt64, epoch: UInt32, count: Int) -> [UInt32] {
        filled(count) { zo_rng_permutation(seed, epoch, UInt32(count), $0) }
    }

    private static func filled<Value>(_ count: Int, _ fill: (UnsafeMutablePointer<Value>) -> Void) -> [Value] {
        [Value](unsafeUninitializedCapacity: count) {
            if count > 0 { fill($0.baseAddress!) }
            $1 = count
        }
    }
}
