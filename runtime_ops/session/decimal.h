// Numbers as messages show them.
#pragma once

#include <cstdio>
#include <string>

namespace zoexport {

inline std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

}  // namespace zoexport
