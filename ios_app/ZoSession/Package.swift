// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "ZoSession",
    platforms: [.iOS(.v17), .macOS(.v14)],
    products: [
        .library(name: "ZoSession", targets: ["ZoSession"]),
        .library(name: "ZoCoreML", targets: ["ZoCoreML"]),
        .library(name: "ZoTraining", targets: ["ZoTraining"]),
    ],
    targets: [
        .systemLibrary(name: "CZoexport"),
        .target(name: "ZoSession", dependencies: ["CZoexport"]),
        .target(name: "ZoCoreML", dependencies: ["ZoSession"]),
        .target(name: "ZoTraining", dependencies: ["ZoSession"]),
    ]
)
