// A libQnnHtp.so that stands before another one and adapts the configuration of its devices.
//
// ExecuTorch is compiled against headers of QNN 2.37, where the union of an HTP device's custom configuration begins 4
// bytes after its option. In newer releases, such as the one on PyPI, a pointer has joined the union, so that it begins
// after 8. Only deviceCreate sees such a configuration; every other call goes to the real library untouched.
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Layout of QnnInterface_t, the same in all headers of API version 2: the functions follow its description.
constexpr size_t kVersion = 16;       // the offset in bytes of its core API version: major, minor, patch
constexpr size_t kFunctions = 40;     // that of the functions
constexpr size_t kDeviceCreate = 40;  // its place among them
constexpr size_t kCopied = 72;        // more of them than the older headers name; fewer than a library has of
constexpr uint32_t kMajor = 2;        // this version, from this minor one on
constexpr uint32_t kLeastMinor = 40;

constexpr uint32_t kCustom = 0;  // QNN_DEVICE_CONFIG_OPTION_CUSTOM
constexpr size_t kMost = 8;      // configurations that are passed on; ExecuTorch gives two
constexpr uint64_t kFailed = 1;

struct DeviceConfig {
  uint32_t option;
  const void* custom;
};

struct OlderHtpConfig {
  uint32_t option;
  uint32_t value[2];
};

struct NewerHtpConfig {
  uint32_t option;
  alignas(8) uint32_t value[4];
};

static_assert(offsetof(OlderHtpConfig, value) == 4 && offsetof(NewerHtpConfig, value) == 8);

using Providers = uint64_t (*)(const void*** providers, uint32_t* count);
using DeviceCreate = uint64_t (*)(void* log, const DeviceConfig** configs, void** device);

DeviceCreate real_device_create = nullptr;

uint64_t device_create(void* log, const DeviceConfig** configs, void** device) {
  std::array<DeviceConfig, kMost> adapted{};
  std::array<NewerHtpConfig, kMost> values{};
  std::array<const DeviceConfig*, kMost + 1> list{};
  size_t count = 0;
  for (; configs != nullptr && *configs != nullptr && count < kMost; ++configs) {
    // Except for custom configurations, ExecuTorch only describes the platform, in a struct that has changed too;
    // without it the library describes it itself, by the chip.
    if ((*configs)->option == kCustom) {
      const auto* older = static_cast<const OlderHtpConfig*>((*configs)->custom);
      values[count].option = older->option;
      std::memcpy(values[count].value, older->value, sizeof(older->value));
      adapted[count] = {kCustom, &values[count]};
      list[count] = &adapted[count];
      ++count;
    }
  }
  return real_device_create(log, list.data(), device);
}

}  // namespace

// The only symbol that QNN's users look up by name. ZOEXPORT_QNN_HTP names the real library.
extern "C" __attribute__((visibility("default"))) uint64_t QnnInterface_getProviders(const void*** providers,
                                                                                     uint32_t* count) {
  static void* library = nullptr;
  alignas(8) static std::array<uint8_t, kFunctions + kCopied * sizeof(void*)> interface;
  static const void* provider = interface.data();
  if (library == nullptr) {
    const char* path = std::getenv("ZOEXPORT_QNN_HTP");
    library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) {
      std::fprintf(stderr, "zoexport: ZOEXPORT_QNN_HTP: %s\n", path != nullptr ? dlerror() : "not set");
      return kFailed;
    }
  }
  const auto real = reinterpret_cast<Providers>(dlsym(library, "QnnInterface_getProviders"));
  const void** found = nullptr;
  uint32_t number = 0;
  if (real == nullptr || real(&found, &number) != 0 || number == 0) {
    return kFailed;
  }
  std::array<uint32_t, 2> version{};
  std::memcpy(version.data(), static_cast<const uint8_t*>(found[0]) + kVersion, sizeof(version));
  if (version[0] != kMajor || version[1] < kLeastMinor) {
    std::fprintf(
        stderr, "zoexport: ZOEXPORT_QNN_HTP: found QNN's API %u.%u; expected %u.%u or a newer minor version. %s\n",
        version[0], version[1], kMajor, kLeastMinor, "Install the release of onnxruntime-qnn that zoexport names.");
    return kFailed;
  }
  std::memcpy(interface.data(), found[0], interface.size());
  const auto replacement = &device_create;
  void* const slot = interface.data() + kFunctions + kDeviceCreate * sizeof(void*);
  std::memcpy(static_cast<void*>(&real_device_create), slot, sizeof(real_device_create));
  std::memcpy(slot, static_cast<const void*>(&replacement), sizeof(replacement));
  *providers = &provider;
  *count = 1;
  return 0;
}
