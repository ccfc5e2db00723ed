plugins {
    alias(libs.plugins.android.application)
}

// To sign a release: ~/.gradle/gradle.properties, or -P of the command line.
val keystore = providers.gradleProperty("zoexport.keystore").orNull

android {
    namespace = "zoexport.app"
    compileSdk = 36

    defaultConfig {
        applicationId = "dev.zoexport.app" // zoexport/tools/device/runs.py brings bundles to it
        minSdk = 30
        targetSdk = 36
        versionCode = 1
        versionName = "0.1.0"
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    signingConfigs {
        if (keystore != null) {
            create("release") {
                storeFile = file(keystore)
                storePassword = providers.gradleProperty("zoexport.keystore.password").get()
                keyAlias = providers.gradleProperty("zoexport.key").get()
                keyPassword = providers.gradleProperty("zoexport.key.password").get()
            }
        }
    }

    buildTypes {
        release {
            isMinifyEnabled = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
            signingConfig = signingConfigs.findByName("release")
        }
    }

    // The NPU opens its libraries by their paths, so they must be files.
    packaging {
        jniLibs.useLegacyPackaging = true
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

dependencies {
    implementation(project(":session"))
}
