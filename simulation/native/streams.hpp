// The random streams of strategies/task.py, bit for bit: SHA-256 of a label (FIPS 180-4) keys
// Philox4x64-10 (Salmon et al. 2011), whose words in a stable order are a shuffle. And the hash
// that dropout masks are made of.

INLINE uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

constexpr uint32_t SHA_K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The first 16 bytes of the digest, as two little-endian words.
inline std::array<uint64_t, 2> stream_key(std::string text) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint64_t bits = text.size() * 8;
    text.push_back('\x80');
    while (text.size() % 64 != 56) text.push_back('\0');
    for (int i = 7; i >= 0; i--) text.push_back(static_cast<char>(bits >> (8 * i)));
    for (size_t at = 0; at < text.size(); at += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; i++) {
            uint32_t word;
            std::memcpy(&word, text.data() + at + 4 * i, 4);
            w[i] = __builtin_bswap32(word);
        }
        for (int i = 16; i < 64; i++) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
                   (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
        }
        uint32_t s[8];
        std::memcpy(s, h, sizeof s);
        for (int i = 0; i < 64; i++) {
            const uint32_t e = s[4], a = s[0];
            const uint32_t one = s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
                                 ((e & s[5]) ^ (~e & s[6])) + SHA_K[i] + w[i];
            const uint32_t two =
                (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            for (int j = 7; j > 0; j--) s[j] = s[j - 1];
            s[4] += one;
            s[0] = one + two;
        }
        for (int i = 0; i < 8; i++) h[i] += s[i];
    }
    for (uint32_t& word : h) word = __builtin_bswap32(word);
    return {h[0] | uint64_t(h[1]) << 32, h[2] | uint64_t(h[3]) << 32};
}

// numpy's Philox from a key, counter at zero: it counts up before each block of four words.
struct Philox {
    std::array<uint64_t, 2> key;
    uint64_t counter = 0;
    uint64_t block[4];
    int at = 4;

    uint64_t next() {
        if (at == 4) refill();
        return block[at++];
    }
    void refill() {
        uint64_t c[4] = {++counter, 0, 0, 0}, k0 = key[0], k1 = key[1];
        for (int i = 0; i < 10; i++) {
            const auto a = static_cast<unsigned __int128>(c[0]) * 0xD2E7470EE14C6C93u;
            const auto b = static_cast<unsigned __int128>(c[2]) * 0xCA5A826395121157u;
            const uint64_t c0 = uint64_t(b >> 64) ^ c[1] ^ k0, c2 = uint64_t(a >> 64) ^ c[3] ^ k1;
            c[1] = static_cast<uint64_t>(b);
            c[3] = static_cast<uint64_t>(a);
            c[0] = c0;
            c[2] = c2;
            k0 += 0x9E3779B97F4A7C15u;
            k1 += 0xBB67AE8584CAA73Bu;
        }
        std::memcpy(block, c, sizeof block);
        at = 0;
    }
};

typedef std::vector<std::pair<uint64_t, int64_t>> Order;

// order(bits, count): equal words keep their places, as in a stable sort.
inline void shuffle(Philox& bits, int64_t count, Order& out) {
    out.resize(count);
    for (int64_t i = 0; i < count; i++) out[i] = {bits.next(), i};
    std::sort(out.begin(), out.end());
}

inline std::string label(const char* prefix, int64_t round, int64_t client) {
    return std::string(prefix) + std::to_string(round) + "\n" + std::to_string(client) + "\n";
}

// splitmix64's step.
INLINE uint64_t mixed(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 30;
    h *= 0x94D049BB133111EBu;
    return h ^ h >> 27;
}

// 32 bits for one element of a layer in a step (murmur3's finaliser, twice keyed); vectorises.
INLINE uint32_t element_bits(uint32_t k0, uint32_t k1, uint32_t element) {
    uint32_t h = element * 0x9E3779B1u ^ k0;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h = (h ^ h >> 16 ^ k1) * 0x85EBCA6Bu;
    return h ^ h >> 15;
}
