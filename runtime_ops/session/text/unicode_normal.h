// Unicode's normalization forms, as the library tokenizers has them.
#pragma once

#include <string>
#include <string_view>

namespace zoexport {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` is valid UTF-8.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace zoexport
