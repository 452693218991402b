// How does a kernel in C++ or CUDA answer the oracle? Read a flat suite, judge, write answers.
//
//     neocpu::oracle::Suite suite("suite.flat");             // neocpu oracle export --flat suite.flat
//     for (const auto& question : suite.cases()) {
//         auto rows = question.input("weights").as<float>();
//         ...
//         auto verdict = neocpu::oracle::judge(question.output("out"), out.data(), out.size());
//     }
//
// C++17, no library, with neocpu_oracle.h beside it, the reader in C; host code of a .cu file may
// include it. The layout of the file stands in the head of flat.py beside this file, the rules of a
// verdict in docs/oracle.md §3.
// Statistics of stochastic rounding, repeated runs and explanations of mistakes are not here: write
// the answers (`Answers`) and let `neocpu oracle check suite.flat answers.safetensors` tell them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "neocpu_oracle.h"

namespace neocpu::oracle {

/// What is wrong with a file, an array, or a name that does not exist.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The elements of an array in the mapped file: no copy; valid as long as the suite is.
template <class T>
class View {
public:
    View(const T* first, std::size_t count) : first_(first), count_(count) {}
    const T* data() const { return first_; }
    std::size_t size() const { return count_; }
    const T& operator[](std::size_t i) const { return first_[i]; }
    const T* begin() const { return first_; }
    const T* end() const { return first_ + count_; }

private:
    const T* first_;
    std::size_t count_;
};

/// Numbers that C++ has no name for: _Float16, __half, __nv_bfloat16, c10::Half, ... They are no
/// integers and convert to float, so they are judged as numbers, never as codes.
template <class T>
constexpr bool is_narrow_number = !std::is_arithmetic_v<T> && !std::is_enum_v<T> &&
                                  std::is_constructible_v<float, T>;

/// NumPy's name of an element type.
template <class T>
std::string dtype_of() {
    static_assert(std::is_arithmetic_v<T>, "elements of arrays are numbers");
    const char kind = std::is_same_v<T, bool>       ? 'b'
                      : std::is_floating_point_v<T> ? 'f'
                      : std::is_signed_v<T>         ? 'i'
                                                    : 'u';
    return (sizeof(T) == 1 ? "|" : "<") + std::string(1, kind) + std::to_string(sizeof(T));
}

/// One array: an input, or a part of an output.
struct Array {
    std::string name;
    std::string format;  // of narrow elements, whose codes stand here: bf16, fp16, fp8_e4m3, ...
    std::string dtype;   // NumPy's name, such as "<f4"
    std::vector<std::size_t> shape;
    std::string about;  // inputs: shape, dtype and meaning in words
    std::string axes;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;  // elements

    /// The elements, of exactly that type. Throws Error for another.
    template <class T>
    View<T> as() const {
        if (dtype != dtype_of<T>()) {
            throw Error(name + " has elements of type " + dtype + ", not " + dtype_of<T>());
        }
        return {reinterpret_cast<const T*>(bytes), size};
    }

    /// The elements as 64-bit whole numbers, whatever integers they are.
    std::vector<std::int64_t> integers() const {
        std::vector<std::int64_t> out(size);
        for (std::size_t i = 0; i < size; ++i) out[i] = integer(i);
        return out;
    }

    /// One element as a 64-bit whole number. Throws Error where elements are no integers.
    std::int64_t integer(std::size_t i) const {
        if (dtype == "<i8") return as<std::int64_t>()[i];
        if (dtype == "<i4") return as<std::int32_t>()[i];
        if (dtype == "<i2") return as<std::int16_t>()[i];
        if (dtype == "|i1") return as<std::int8_t>()[i];
        if (dtype == "<u8") return static_cast<std::int64_t>(as<std::uint64_t>()[i]);
        if (dtype == "<u4") return as<std::uint32_t>()[i];
        if (dtype == "<u2") return as<std::uint16_t>()[i];
        if (dtype == "|u1") return as<std::uint8_t>()[i];
        if (dtype == "|b1") return as<bool>()[i];
        throw Error(name + " has elements of type " + dtype + ", not integers");
    }
};

/// What one output must be.
struct Output {
    std::string name;
    std::string about;
    std::string axes;
    std::string format;  // of its elements: fp32, bf16, ...; exact ones: their integer type
    bool exact = false;
    std::map<std::string, Array> parts;  // canonical, reference, bound; lower, upper, ...

    /// A part. Throws Error where there is none.
    const Array& part(const std::string& part_name) const {
        const auto place = parts.find(part_name);
        if (place == parts.end()) throw Error("output " + name + " has no part " + part_name);
        return place->second;
    }
    /// Shape of the answer.
    const std::vector<std::size_t>& shape() const { return part("reference").shape; }
    /// Elements of the answer.
    std::size_t size() const { return part("reference").size; }
};

using Value = std::variant<bool, std::int64_t, double, std::string>;

/// One question: inputs, options, and what the outputs must be.
struct Case {
    std::string name;
    std::string op;
    std::string about;
    std::map<std::string, Value> options;
    std::map<std::string, Array> inputs;
    std::map<std::string, Output> outputs;

    bool has_input(const std::string& key) const { return inputs.count(key) != 0; }
    /// Throws Error where there is no such input; so do the other functions.
    const Array& input(const std::string& key) const { return find(inputs, key, "input"); }
    const Output& output(const std::string& key) const { return find(outputs, key, "output"); }
    std::string text(const std::string& key) const { return option<std::string>(key); }
    std::int64_t integer(const std::string& key) const { return option<std::int64_t>(key); }
    bool flag(const std::string& key) const { return option<bool>(key); }
    /// A number, also where it was written as a whole one.
    double number(const std::string& key) const {
        const Value& value = find(options, key, "option");
        if (const auto* whole = std::get_if<std::int64_t>(&value)) {
            return static_cast<double>(*whole);
        }
        return option<double>(key);
    }

private:
    template <class T>
    T option(const std::string& key) const {
        const Value& value = find(options, key, "option");
        if (!std::holds_alternative<T>(value)) {
            throw Error("case " + name + ": option " + key + " is of another type");
        }
        return std::get<T>(value);
    }
    template <class Map>
    const typename Map::mapped_type& find(const Map& map, const std::string& key,
                                          const char* what) const {
        const auto place = map.find(key);
        if (place == map.end()) throw Error("case " + name + " has no " + what + " " + key);
        return place->second;
    }
};

namespace detail {

/// Bytes at an address that is a multiple of 64, as the arrays of the file want them.
struct AlignedDelete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t(64)); }
};
using Bytes = std::unique_ptr<std::byte, AlignedDelete>;

/// Reads the records of a file, one after the other.
class Cursor {
public:
    Cursor(const std::byte* data, std::size_t size, std::size_t place, std::string path)
        : data_(data), size_(size), place_(place), path_(std::move(path)) {}

    template <class T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }

    std::string text() {
        const auto size = number<std::uint32_t>();
        const auto* first = reinterpret_cast<const char*>(take(size));
        return {first, size};
    }

    Value option() {
        switch (static_cast<char>(number<std::uint8_t>())) {
            case 'b': return number<std::uint8_t>() != 0;
            case 'i': return number<std::int64_t>();
            case 'f': return number<double>();
            case 's': return text();
            default: throw Error(path_ + ": an option of an unknown kind");
        }
    }

    Array array() {
        Array out;
        out.name = text();
        out.format = text();
        out.dtype = text();
        const auto axes = number<std::uint32_t>();
        out.size = 1;
        for (std::uint32_t axis = 0; axis < axes; ++axis) {
            out.shape.push_back(number<std::uint64_t>());
            constexpr auto most = std::numeric_limits<std::size_t>::max();
            if (out.shape.back() != 0 && out.size > most / out.shape.back()) {
                throw Error(path_ + ": " + out.name + " has a shape beyond memory");
            }
            out.size *= out.shape.back();
        }
        const auto start = number<std::uint64_t>();
        const auto bytes = number<std::uint64_t>();
        if (start > size_ || bytes > size_ - start || start % 64 != 0) {
            throw Error(path_ + ": " + out.name + " goes beyond the file's end");
        }
        const std::size_t width = width_of(out);
        if (bytes % width != 0 || out.size != bytes / width) {
            throw Error(path_ + ": " + out.name + " has not the bytes of its shape");
        }
        out.bytes = data_ + start;
        return out;
    }

    Case question() {
        Case out;
        out.name = text();
        out.op = text();
        out.about = text();
        const auto options = number<std::uint32_t>();
        const auto inputs = number<std::uint32_t>();
        const auto outputs = number<std::uint32_t>();
        for (std::uint32_t i = 0; i < options; ++i) {
            const auto name = text();
            out.options[name] = option();
        }
        for (std::uint32_t i = 0; i < inputs; ++i) {
            Array input = array();
            input.about = text();
            input.axes = text();
            out.inputs[input.name] = input;
        }
        for (std::uint32_t i = 0; i < outputs; ++i) {
            Output result = output();
            out.outputs[result.name] = result;
        }
        return out;
    }

private:
    /// Bytes of an element.
    std::size_t width_of(const Array& array) const {
        const std::string& dtype = array.dtype;
        const char digit = dtype.size() == 3 ? dtype[2] : '0';
        if (digit != '1' && digit != '2' && digit != '4' && digit != '8') {
            throw Error(path_ + ": " + array.name + " has elements of unknown type " + dtype);
        }
        return static_cast<std::size_t>(digit - '0');
    }

    Output output() {
        Output out;
        out.name = text();
        out.about = text();
        out.axes = text();
        out.format = text();
        out.exact = number<std::uint8_t>() != 0;
        const auto parts = number<std::uint32_t>();
        for (std::uint32_t i = 0; i < parts; ++i) {
            Array part = array();
            out.parts[part.name] = part;
        }
        return out;
    }

    const std::byte* take(std::size_t count) {
        if (count > size_ - place_) throw Error(path_ + ": a record goes beyond the file's end");
        place_ += count;
        return data_ + place_ - count;
    }

    const std::byte* data_;
    std::size_t size_;
    std::size_t place_;
    std::string path_;
};

}  // namespace detail

/// All questions of a flat file. Throws Error for one that is missing, foreign or damaged.
class Suite {
public:
    explicit Suite(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        // A directory opens as a file does, and says only when it is read that it is none.
        if (file && file.peek() == std::ifstream::traits_type::eof() && !file.eof()) {
            throw Error(path + ": is no file; name a flat suite");
        }
        file.clear(file.rdstate() & ~std::ios::eofbit);
        file.seekg(0, std::ios::end);
        if (!file) throw Error(path + ": cannot be read");
        const auto size = static_cast<std::size_t>(file.tellg());
        bytes_.reset(static_cast<std::byte*>(::operator new(size + 1, std::align_val_t(64))));
        file.seekg(0);
        file.read(reinterpret_cast<char*>(bytes_.get()), static_cast<std::streamsize>(size));
        if (!file) throw Error(path + ": cannot be read whole");
        const auto* raw = reinterpret_cast<const unsigned char*>(bytes_.get());
        if (!neocpu_is_suite(raw, size)) {
            throw Error(path + ": not a flat suite; neocpu oracle export --flat " + path);
        }
        if (const char* damage = neocpu_damage(raw, size)) throw Error(path + ": " + damage);
        detail::Cursor header(bytes_.get(), size, 24, path);
        header.number<std::uint32_t>();  // version of the suite's format
        const auto cases = header.number<std::uint32_t>();
        for (int i = 0; i < 32; ++i) {
            constexpr const char* digits = "0123456789abcdef";
            const auto byte = header.number<std::uint8_t>();
            sha256 += digits[byte >> 4];
            sha256 += digits[byte & 15];
        }
        seed = header.number<std::int64_t>();
        neocpu = header.text();
        for (std::uint32_t i = 0; i < cases; ++i) cases_.push_back(header.question());
    }

    const std::vector<Case>& cases() const { return cases_; }

    std::string sha256;  // of the content, the same as of the HDF5 twin
    std::string neocpu;  // the version that wrote it
    std::int64_t seed = 0;

private:
    detail::Bytes bytes_;
    std::vector<Case> cases_;
};

/// The number that a code of a narrow format stands for. Throws Error for an unknown format.
inline double decode(const std::string& format, std::uint32_t code) {
    double number = 0;
    if (neocpu_decode(format.data(), format.size(), code, &number)) return number;
    throw Error("no codes of format " + format);
}

/// The judgement of one output.
struct Verdict {
    std::size_t elements = 0;
    std::size_t wrong = 0;
    std::size_t unlikely = 0;  // right, but farther off than rounding usually takes a sum
    std::size_t first = 0;     // flat index of the first wrong element
    double theirs = 0;         // there: the answer, what it should be, and how far off it may be
    double reference = 0;
    double bound = 0;
    std::string problem;  // why nothing could be compared

    bool passed() const { return wrong == 0 && problem.empty(); }
    explicit operator bool() const { return passed(); }

    /// In words.
    std::string message() const {
        if (!problem.empty()) return problem;
        std::ostringstream out;
        out.precision(9);
        if (wrong == 0) {
            out << elements << " elements are right";
            if (unlikely != 0) out << ", " << unlikely << " of them unlikely";
        } else {
            out << wrong << " of " << elements << " wrong, first at element " << first << ": "
                << theirs << ", expected " << reference;
            if (bound > 0) out << " +- " << bound;
        }
        return out.str();
    }
};

namespace detail {

/// Optional part of an output, or a null pointer.
inline const double* optional_part(const Output& output, const char* name) {
    const auto place = output.parts.find(name);
    return place == output.parts.end() ? nullptr : place->second.as<double>().data();
}

/// Judges numbers that come by index.
template <class Number>
Verdict judge_numbers(const Output& output, Number number) {
    Verdict verdict;
    const auto reference = output.part("reference").as<double>();
    const auto bound = output.part("bound").as<double>();
    const double* lower = optional_part(output, "lower");
    const double* upper = optional_part(output, "upper");
    const double* typical = optional_part(output, "typical");
    verdict.elements = reference.size();
    for (std::size_t i = 0; i < reference.size(); ++i) {
        const double x = number(i);
        const double error = std::abs(x - reference[i]);
        const bool both_nan = std::isnan(x) && std::isnan(reference[i]);
        bool right = x == reference[i] || both_nan || std::isinf(bound[i]) || error <= bound[i];
        if (lower != nullptr && x < lower[i]) right = false;
        if (upper != nullptr && x > upper[i]) right = false;
        if (right && typical != nullptr && error > typical[i]) ++verdict.unlikely;
        if (!right && verdict.wrong++ == 0) {
            verdict.first = i;
            verdict.theirs = x;
            verdict.reference = reference[i];
            verdict.bound = bound[i];
        }
    }
    return verdict;
}

inline Verdict judge_integers(const Output& output, const std::vector<std::int64_t>& answer) {
    Verdict verdict;
    const auto expected = output.part("reference").integers();
    verdict.elements = expected.size();
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (answer[i] != expected[i] && verdict.wrong++ == 0) {
            verdict.first = i;
            verdict.theirs = static_cast<double>(answer[i]);
            verdict.reference = static_cast<double>(expected[i]);
        }
    }
    return verdict;
}

}  // namespace detail

/// Is this answer right? Floats are numbers, also those of half types such as _Float16, __half or
/// __nv_bfloat16; of exact outputs T is an integer; of narrow outputs T may be an integer that holds
/// the format's codes.
template <class T>
Verdict judge(const Output& output, const T* answer, std::size_t count) {
    static_assert(std::is_arithmetic_v<T> || is_narrow_number<T>,
                  "an answer is of numbers, of values that convert to float, or of integer codes");
    Verdict verdict;
    if (count != output.size()) {
        verdict.problem = "output " + output.name + " has " + std::to_string(output.size()) +
                          " elements, " + std::to_string(count) + " were given";
        return verdict;
    }
    if constexpr (std::is_floating_point_v<T> || is_narrow_number<T>) {
        if (output.exact) {
            verdict.problem = "output " + output.name + " is of integers";
            return verdict;
        }
        using Wide = std::conditional_t<std::is_floating_point_v<T>, T, float>;
        return detail::judge_numbers(output, [answer](std::size_t i) {
            return static_cast<double>(static_cast<Wide>(answer[i]));
        });
    } else {
        if (output.exact) {
            return detail::judge_integers(output, {answer, answer + count});
        }
        if (output.format == "fp32") {
            verdict.problem = "output " + output.name + " is of fp32 numbers";
            return verdict;
        }
        return detail::judge_numbers(output, [&](std::size_t i) {
            return decode(output.format, static_cast<std::uint32_t>(answer[i]));
        });
    }
}

/// An array between two guard zones, for a kernel to read or to write. Everything but the elements of
/// an input is full of ones: a NaN in every format, and -1. For a kernel on a device copy `memory()`,
/// zones and all, there and back; the elements begin `zone_bytes` behind its beginning.
template <class T>
class Guarded {
public:
    /// A neighbour of the widest row, 2,048 columns of 8 bytes, lies within a zone.
    static constexpr std::size_t zone_bytes = 16384;

    /// An output of so many elements.
    explicit Guarded(std::size_t count) : count_(count) {
        const std::size_t size = memory_size();
        memory_.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t(64))));
        std::memset(memory_.get(), 0xFF, size);
    }
    /// A copy of an input, which stays valid longer than this.
    explicit Guarded(const View<T>& input) : Guarded(input.size()) {
        input_ = reinterpret_cast<const std::byte*>(input.data());
        if (input.size() != 0) std::memcpy(data(), input.data(), input.size() * sizeof(T));
    }

    T* data() { return reinterpret_cast<T*>(memory_.get() + zone_bytes); }
    const T* data() const { return reinterpret_cast<const T*>(memory_.get() + zone_bytes); }
    std::size_t size() const { return count_; }
    std::byte* memory() { return memory_.get(); }
    std::size_t memory_size() const { return 2 * zone_bytes + count_ * sizeof(T); }

    /// What a kernel did that it must not do, in words; empty where it did nothing of the kind.
    std::string problem() const {
        const std::byte* elements = memory_.get() + zone_bytes;
        const std::byte* behind = elements + count_ * sizeof(T);
        for (std::size_t i = 0; i < zone_bytes; ++i) {
            if (elements[-1 - static_cast<std::ptrdiff_t>(i)] != std::byte{0xFF}) {
                return "wrote outside: " + std::to_string(i + 1) + " bytes before the beginning";
            }
            if (behind[i] != std::byte{0xFF}) {
                return "wrote outside: " + std::to_string(i) + " bytes behind the end";
            }
        }
        for (std::size_t i = 0; input_ != nullptr && i < count_ * sizeof(T); ++i) {
            if (elements[i] != input_[i]) {
                return "changed an input: element " + std::to_string(i / sizeof(T));
            }
        }
        return "";
    }
    /// Was an element of an output never written?
    bool unwritten(std::size_t i) const {
        const std::byte* element = memory_.get() + zone_bytes + i * sizeof(T);
        for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
            if (element[byte] != std::byte{0xFF}) return false;
        }
        return true;
    }

private:
    std::size_t count_;
    const std::byte* input_ = nullptr;
    detail::Bytes memory_;
};

/// The same of an answer in a guarded buffer, which also tells elements that nobody wrote, and what
/// was written outside.
template <class T>
Verdict judge(const Output& output, const Guarded<T>& answer) {
    Verdict verdict = judge(output, answer.data(), answer.size());
    verdict.problem += answer.problem();
    if (verdict.wrong != 0 && answer.unwritten(verdict.first)) {
        verdict.problem += (verdict.problem.empty() ? "" : "; ") +
                           ("left unwritten: element " + std::to_string(verdict.first));
    }
    return verdict;
}

/// Answers on their way to a safetensors file, which `neocpu oracle check` reads and explains.
class Answers {
public:
    /// One output of a case. A narrow format's name says that elements are its codes; half types
    /// are written as the fp32 numbers that they are.
    template <class T>
    void add(const Case& question, const Output& output, const T* answer) {
        if constexpr (is_narrow_number<T>) {
            std::vector<float> wide(output.size());
            for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(answer[i]);
            add(question, output, wide.data());
        } else {
            Entry entry;
            entry.key = question.name + "/" + output.name;
            entry.type = type_of<T>(output);
            entry.shape = output.shape();
            entry.bytes.resize(output.size() * sizeof(T));
            if (!entry.bytes.empty()) std::memcpy(entry.bytes.data(), answer, entry.bytes.size());
            entries_.push_back(std::move(entry));
        }
    }

    /// Write all. Throws Error where the file cannot be written.
    void write(const std::string& path) const {
        std::ostringstream header;
        std::size_t end = 0;
        header << "{";
        for (const Entry& entry : entries_) {
            header << (end == 0 && &entry == &entries_.front() ? "" : ",") << "\"" << entry.key
                   << "\":{\"dtype\":\"" << entry.type << "\",\"shape\":[";
            for (std::size_t axis = 0; axis < entry.shape.size(); ++axis) {
                header << (axis == 0 ? "" : ",") << entry.shape[axis];
            }
            header << "],\"data_offsets\":[" << end << "," << end + entry.bytes.size() << "]}";
            end += entry.bytes.size();
        }
        header << "}";
        const std::string text = header.str();
        const std::uint64_t size = text.size();
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&size), sizeof size);
        file.write(text.data(), static_cast<std::streamsize>(text.size()));
        for (const Entry& entry : entries_) {
            file.write(reinterpret_cast<const char*>(entry.bytes.data()),
                       static_cast<std::streamsize>(entry.bytes.size()));
        }
        file.flush();
        if (!file) throw Error(path + ": cannot be written");
    }

private:
    struct Entry {
        std::string key;
        std::string type;
        std::vector<std::size_t> shape;
        std::vector<std::byte> bytes;
    };

    /// safetensors' name of an element type.
    template <class T>
    static std::string type_of(const Output& output) {
        static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, long double>);
        if constexpr (std::is_unsigned_v<T> && !std::is_same_v<T, bool>) {
            if (output.format == "bf16") return "BF16";
            if (output.format == "fp16") return "F16";
            if (output.format == "fp8_e4m3") return "F8_E4M3";
            if (output.format == "fp8_e5m2") return "F8_E5M2";
        }
        if constexpr (std::is_same_v<T, bool>) return "BOOL";
        const char kind = std::is_floating_point_v<T> ? 'F' : std::is_signed_v<T> ? 'I' : 'U';
        return std::string(1, kind) + std::to_string(8 * sizeof(T));
    }

    std::vector<Entry> entries_;
};

}  // namespace neocpu::oracle
