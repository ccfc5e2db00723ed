// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "SmokeTests",
    dependencies: [.package(path: "../../ios_app/ZoSession")],
    targets: [.testTarget(name: "SmokeTests", dependencies: ["ZoSession"], path: "SmokeTests")]
)
