// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "ZoSession",
    products: [.library(name: "ZoSession", targets: ["ZoSession"])],
    targets: [
        .systemLibrary(name: "CZoexport"),
        .target(name: "ZoSession", dependencies: ["CZoexport"]),
    ]
)
