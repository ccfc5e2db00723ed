// Gives ExecuTorch the parts of a program file, mapped from a descriptor that is open already: its own loader would open
// the path again, which may be another file by then.
#pragma once

#include <executorch/runtime/core/data_loader.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "session/storage/files.h"

namespace zoexport {

class MappedLoader final : public executorch::runtime::DataLoader {
 public:
  explicit MappedLoader(std::shared_ptr<const OpenFile> file) : file_(std::move(file)) {}

  executorch::runtime::Result<executorch::runtime::FreeableBuffer> load(size_t offset, size_t size,
                                                                        const SegmentInfo&) const override {
    if (!within(offset, size)) {
      return executorch::runtime::Error::InvalidArgument;
    }
    auto mapped = MappedFile::of(*file_, offset, size, MappedFile::Writes::kPrivateCopy);
    if (!mapped.ok()) {
      return executorch::runtime::Error::AccessFailed;
    }
    const void* data = mapped->data();
    return executorch::runtime::FreeableBuffer(
        data, size, [](void* held, void*, size_t) { delete static_cast<MappedFile*>(held); },
        new MappedFile(std::move(*mapped)));
  }

  executorch::runtime::Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    if (!within(offset, size)) {
      return executorch::runtime::Error::InvalidArgument;
    }
    return file_->read_at(buffer, size, offset) == static_cast<ssize_t>(size)
               ? executorch::runtime::Error::Ok
               : executorch::runtime::Error::AccessFailed;
  }

  executorch::runtime::Result<size_t> size() const override { return static_cast<size_t>(file_->size()); }

 private:
  bool within(size_t offset, size_t size) const { return offset <= file_->size() && size <= file_->size() - offset; }

  std::shared_ptr<const OpenFile> file_;
};

}  // namespace zoexport
