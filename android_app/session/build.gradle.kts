plugins {
    alias(libs.plugins.android.library)
}

// Both are needed for the native library; README.md says how they come to be. In the first there is a folder for each ABI.
val executorch = providers.gradleProperty("zoexport.executorch").orElse(rootDir.resolve("executorch").path).get()
val python = providers.gradleProperty("zoexport.python").orElse(rootDir.resolve("../.venv/bin/python").path).get()
val abis = listOf("arm64-v8a", "x86_64").filter { File(executorch, "$it/lib").isDirectory }

android {
    namespace = "zoexport.session"
    compileSdk = 36
    ndkVersion = "28.2.13676358"

    defaultConfig {
        minSdk = 30
        consumerProguardFiles("consumer-rules.pro")
        if (abis.isNotEmpty()) {
            ndk {
                abiFilters += abis
            }
            externalNativeBuild {
                cmake {
                    arguments += listOf(
                        "-DANDROID_STL=c++_static",
                        "-DEXECUTORCH_FOLDER=$executorch",
                        "-DPython3_EXECUTABLE=$python",
                    )
                    targets += "zoexport_jni"
                }
            }
        }
    }

    // Qualcomm's libraries for the NPU, where build-executorch was given the SDK.
    sourceSets["main"].jniLibs.srcDir("$executorch/jniLibs")

    // Without ExecuTorch the project can still be opened and its Kotlin edited; building it says what is missing.
    if (abis.isNotEmpty()) {
        externalNativeBuild {
            cmake {
                path = file("src/main/cpp/CMakeLists.txt")
                version = "3.31.6"
            }
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

if (abis.isEmpty()) {
    tasks.named("preBuild") {
        doFirst {
            throw GradleException(
                "$executorch: found no ExecuTorch for arm64-v8a or x86_64; expected a folder for each, with lib/ inside. " +
                    "Run ./build-executorch, or set zoexport.executorch in ~/.gradle/gradle.properties.",
            )
        }
    }
}

dependencies {
    api(libs.coroutines.core)
}
