// gzip (RFC 1952), enough to write traces: text that repeats itself.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ladder {

/// Compresses what it is given and hands it on in pieces. Within 32 KiB, repeats become references;
/// what is left has deflate's fixed codes (RFC 1951, 3.2.6).
class Gzip {
 public:
  using Sink = std::function<void(const std::string&)>;
  explicit Gzip(Sink sink);

  void write(const std::string& text);
  /// Nothing can be written after.
  void finish();

 private:
  void deflate();
  void put(uint32_t bits, int count);       // least significant first
  void put_code(uint32_t code, int count);  // most significant first, as Huffman codes are
  void put_symbol(int symbol);
  void put_match(int length, int distance);
  void hand_on();

  Sink sink_;
  std::string pending_;  // to be compressed
  std::string out_;
  uint64_t bits_ = 0;
  int bit_count_ = 0;
  uint32_t crc_ = 0xffffffff, size_ = 0;
  std::array<uint32_t, 256> crc_table_;
  std::vector<int> last_, before_;  // where a hash was seen last, and where before that
};

}  // namespace ladder
