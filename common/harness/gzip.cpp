#include "harness/gzip.h"

#include <bit>
#include <utility>

namespace ladder {
namespace {

constexpr size_t kPiece = 1 << 20;  // compressed at once; references do not reach across
constexpr int kWindow = 32768, kShortest = 4, kLongest = 258, kTries = 24;
constexpr int kHashBits = 15;

uint32_t hash(const char* p) {
  uint32_t x = 0;
  for (int i = 0; i < kShortest; ++i) x = x << 8 | static_cast<unsigned char>(p[i]);
  return x * 2654435761u >> (32 - kHashBits);
}

}  // namespace

Gzip::Gzip(Sink sink) : sink_(std::move(sink)) {
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
    crc_table_[i] = c;
  }
  out_ = std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);  // no name, no time
}

void Gzip::write(const std::string& text) {
  for (const char c : text)
    crc_ = crc_table_[(crc_ ^ static_cast<unsigned char>(c)) & 0xff] ^ crc_ >> 8;
  size_ += static_cast<uint32_t>(text.size());
  pending_ += text;
  if (pending_.size() >= kPiece) deflate();
}

void Gzip::finish() {
  deflate();
  put(1, 1);  // an empty block, the last
  put(1, 2);
  put_symbol(256);
  put(0, (8 - bit_count_ % 8) % 8);
  for (const uint32_t word : {~crc_, size_})
    for (int i = 0; i < 32; i += 8) put(word >> i & 0xff, 8);
  hand_on();
}

void Gzip::hand_on() {
  sink_(out_);
  out_.clear();
}

void Gzip::put(uint32_t bits, int count) {
  bits_ |= uint64_t{bits} << bit_count_;
  for (bit_count_ += count; bit_count_ >= 8; bit_count_ -= 8, bits_ >>= 8)
    out_ += static_cast<char>(bits_);
}

void Gzip::put_code(uint32_t code, int count) {
  for (int i = count; i-- > 0;) put(code >> i & 1, 1);
}

void Gzip::put_symbol(int symbol) {
  const auto s = static_cast<uint32_t>(symbol);
  if (s < 144)
    put_code(0x30 + s, 8);
  else if (s < 256)
    put_code(0x190 + s - 144, 9);
  else if (s < 280)
    put_code(s - 256, 7);
  else
    put_code(0xc0 + s - 280, 8);
}

void Gzip::put_match(int length, int distance) {
  // Lengths and distances have a symbol for each of ever wider ranges, and bits for the place in
  // it.
  if (length == kLongest) {
    put_symbol(285);
  } else {
    const uint32_t n = static_cast<uint32_t>(length) - 3;
    const int extra = n < 8 ? 0 : std::bit_width(n) - 3;
    put_symbol(257 + 4 * extra + static_cast<int>(n >> extra));
    put(n & ((1u << extra) - 1), extra);
  }
  const uint32_t n = static_cast<uint32_t>(distance) - 1;
  const int extra = n < 4 ? 0 : std::bit_width(n) - 2;
  put_code(2 * static_cast<uint32_t>(extra) + (n >> extra), 5);
  put(n & ((1u << extra) - 1), extra);
}

void Gzip::deflate() {
  if (pending_.empty()) return;
  const char* const text = pending_.data();
  const int n = static_cast<int>(pending_.size());
  last_.assign(1 << kHashBits, -1);
  before_.assign(pending_.size(), -1);
  put(0, 1);
  put(1, 2);
  for (int i = 0; i < n;) {
    int best = 0, distance = 0;
    if (i + kShortest <= n) {
      int tries = kTries;
      for (int at = last_[hash(text + i)]; at >= 0 && i - at <= kWindow && tries > 0;
           at = before_[static_cast<size_t>(at)], --tries) {
        int length = 0;
        while (length < kLongest && i + length < n && text[at + length] == text[i + length])
          ++length;
        if (length > best) best = length, distance = i - at;
      }
    }
    const int step = best >= kShortest ? best : 1;
    if (step > 1)
      put_match(best, distance);
    else
      put_symbol(static_cast<unsigned char>(text[i]));
    for (const int end = i + step; i < end; ++i) {
      if (i + kShortest > n) continue;
      int& last = last_[hash(text + i)];
      before_[static_cast<size_t>(i)] = std::exchange(last, i);
    }
  }
  put_symbol(256);
  pending_.clear();
  hand_on();
}

}  // namespace ladder
