// swift-tools-version:5.9
import PackageDescription

let session = Target.Dependency.product(name: "ZoSession", package: "ZoSession")
let coreML = Target.Dependency.product(name: "ZoCoreML", package: "ZoSession")
let training = Target.Dependency.product(name: "ZoTraining", package: "ZoSession")

let package = Package(
    name: "SmokeTests",
    dependencies: [.package(path: "../../ios_app/ZoSession")],
    targets: [
        .target(name: "Cases", dependencies: [session], path: "Cases"),
        .executableTarget(name: "Trainer", dependencies: [session, "Cases"], path: "Trainer"),
        .executableTarget(name: "Train", dependencies: [session], path: "Train"),
        .executableTarget(name: "LifeKilled", dependencies: [session, training], path: "LifeKilled"),
        .testTarget(
            name: "SmokeTests", dependencies: [session, coreML, training, "Cases", "Train", "Trainer", "LifeKilled"],
            path: "SmokeTests"
        ),
    ]
)
