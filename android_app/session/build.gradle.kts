plugins {
    alias(libs.plugins.android.library)
}

// Both are needed for the native library; README.md says how they come to be.
val executorch = providers.gradleProperty("zoexport.executorch").orElse("")
val python = providers.gradleProperty("zoexport.python").orElse(rootDir.resolve("../.venv/bin/python").path)

android {
    namespace = "zoexport.session"
    compileSdk = 36
    ndkVersion = "28.2.13676358"

    defaultConfig {
        minSdk = 30
        consumerProguardFiles("consumer-rules.pro")
        ndk {
            abiFilters += "arm64-v8a"
        }
        externalNativeBuild {
            cmake {
                arguments += listOf(
                    "-DANDROID_STL=c++_static",
                    "-DEXECUTORCH_PREFIX=${executorch.get()}",
                    "-DPython3_EXECUTABLE=${python.get()}",
                )
                targets += "zoexport_jni"
            }
        }
    }

    externalNativeBuild {
        cmake {
            path = file("src/main/cpp/CMakeLists.txt")
            version = "3.31.6"
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

dependencies {
    api(libs.coroutines.core)
}
