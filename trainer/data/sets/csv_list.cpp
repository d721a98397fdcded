// A reader of records and, on it, what a list means: errors name the line where a row begins.
#include "trainer/data/sets/csv_list.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "trainer/data/sets/data_file.h"
#include "worker/parse_number.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t list_bytes_max = std::size_t{1} << 30;  // A line's number fits an int32_t.
constexpr std::int64_t label_max = (1 << 20) - 1;             // More classes than any set has.

[[noreturn]] void fail(const std::string& name, std::int64_t line, const std::string& what) {
  throw DataError(fmt::format("{}, line {}: {}", name, line, what));
}

// Messages quote fields, and a message ends for people at such a byte.
void refuse_nul(std::string_view text, const std::string& name) {
  const std::size_t at = std::min(text.find('\0'), text.size());
  if (at == text.size()) return;
  fail(name, 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
       "it has a NUL byte, which no text has: save the list as UTF-8 text");
}

// The records of a CSV text, one after the other.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // A byte order mark.
  }

  // The next record that is not an empty line; false after the last.
  bool next(std::vector<std::string>& fields) {
    while (at_ < text_.size()) {
      record_line_ = line_;
      fields.clear();
      bool more = true;
      while (more) {
        skip_blanks();
        fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
        more = !ends_record();
      }
      if (fields.size() > 1 || !fields[0].empty()) return true;
    }
    return false;
  }
  std::int64_t line() const { return record_line_; }

 private:
  // Around fields they are how somebody writes lists, and would make a name of the number in ", 7".
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(" \t", at_), text_.size()); }

  std::string plain() {
    const std::size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    const std::string_view field = text_.substr(at_, end - at_);
    at_ = end;
    return std::string(field.substr(0, field.find_last_not_of(" \t") + 1));
  }

  std::string quoted() {
    std::string field;
    const std::int64_t begin_line = line_;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          return field;
        }
        ++at_;
      } else if (text_[at_] == '\n') {
        ++line_;
      }
      field += text_[at_];
    }
    fail(name_, begin_line, "a quoted field does not end");
  }

  // Steps over what follows a field; true at the end of a record.
  bool ends_record() {
    skip_blanks();
    if (at_ == text_.size()) return true;
    if (text_[at_] == ',') {
      ++at_;
      return false;
    }
    if (text_[at_] == '\r') {
      ++at_;
      if (at_ == text_.size()) return true;
    }
    if (text_[at_] != '\n') fail(name_, line_, "text after a quoted field, or a lone CR");
    ++at_;
    ++line_;
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
  std::int64_t record_line_ = 1;
};

struct Columns {
  std::size_t path = 0;
  std::size_t label = 1;
  std::size_t count = 2;
};

std::optional<std::size_t> find_column(const std::vector<std::string>& header,
                                       std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (::strcasecmp(header[i].c_str(), name) == 0) return i;
    }
  }
  return std::nullopt;
}

// What a header's names say, which are those that lists of Hugging Face and Kaggle have.
class NamedColumns {
 public:
  explicit NamedColumns(const std::vector<std::string>& header)
      : path_(find_column(header, {"path", "image_path", "image", "filename", "file_name", "file",
                                   "filepath", "file_path", "img_path", "image_file", "image_name",
                                   "img_name", "img", "fname", "image_id"})),
        label_(
            find_column(header, {"label", "class", "target", "class_id", "label_id", "labels",
                                 "category", "classid", "class_label", "class_name", "label_name",
                                 "category_id", "category_name", "classes", "targets"})),
        count_(header.size()) {}

  // Unless the names say it, the first two are meant.
  Columns columns() const {
    return path_ && label_ ? Columns{*path_, *label_, count_} : Columns{0, 1, count_};
  }
  // The first two of more would be a guess, and so would be those that contradict a name.
  bool are_clear() const {
    return (path_ && label_) || (count_ == 2 && path_.value_or(0) == 0 && label_.value_or(1) == 1);
  }
  std::string missing() const {
    if (!path_ && !label_) return "the paths or the labels: call one \"path\" and one \"label\"";
    return path_ ? "the labels: call one \"label\"" : "the paths: call one \"path\"";
  }

 private:
  std::optional<std::size_t> path_, label_;
  std::size_t count_;
};

std::optional<std::int64_t> number_in(const std::string& text) {
  return worker::parse_number<std::int64_t>(text);
}

// "3.0": as a name it would be sorted as one, behind "10.0".
bool is_broken_number(const std::string& text) {
  return text.find_first_not_of("0123456789.") == text.npos &&
         std::count(text.begin(), text.end(), '.') <= 1 && !number_in(text);
}

// A file of another format must not be taken for a header, and so be left out. Nor must an image of
// a class with the name of a column.
bool is_header(const std::vector<std::string>& fields) {
  if (fields.size() < 2 || std::any_of(fields.begin(), fields.end(), has_image_ending))
    return false;
  const Columns columns = NamedColumns(fields).columns();
  return fields[columns.path].find_first_of("./") == std::string::npos &&
         !number_in(fields[columns.label]);
}

// What one row says, checked as far as one row can be.
class RowReader {
 public:
  RowReader(const std::string& name, CsvImages& images, const CsvImages* like)
      : name_(name), images_(images), like_(like) {}

  void take(std::int64_t line, const std::vector<std::string>& fields) {
    if (first_) {
      first_ = false;
      if (is_header(fields)) return take_header(line, fields);
      columns_.count = fields.size();
    }
    if (fields.size() != columns_.count || fields.size() < 2) {
      // One alone: spreadsheets of many countries write semicolons, other trainers tabs or blanks.
      fail(
          name_, line,
          fmt::format("{}, expected {}{}", worker::counted(std::ssize(fields), "field"),
                      std::max<std::size_t>(2, columns_.count),
                      fields.size() == 1 ? ": commas stand between fields, and nothing else" : ""));
    }
    const std::string& path = fields[columns_.path];
    const std::string& label = fields[columns_.label];
    check_path(line, path);
    if (label.empty()) fail(name_, line, "the label is empty");
    images_.list.paths.add(path);
    images_.list.lines.push_back(static_cast<std::int32_t>(line));
    take_label(line, label);
  }

  // Numbers the names, and counts the classes.
  void finish() {
    if (images_.list.lines.empty()) throw DataError(name_ + " lists no images");
    if (numbers_ == true) {
      const std::int32_t greatest =
          *std::max_element(images_.list.labels.begin(), images_.list.labels.end());
      images_.list.classes = like_ != nullptr ? like_->list.classes : greatest + std::int64_t{1};
      return;
    }
    // Labels are numbers of first occurrence so far.
    std::vector<std::int32_t> label_of(seen_.size());
    if (like_ != nullptr) {
      images_.classes = like_->classes;
    } else {
      for (const auto& [text, number] : seen_) images_.classes.push_back(text);
    }
    for (const auto& [text, number] : seen_) {
      const auto found = std::lower_bound(images_.classes.begin(), images_.classes.end(), text);
      label_of[static_cast<std::size_t>(number)] =
          static_cast<std::int32_t>(found - images_.classes.begin());
    }
    for (std::int32_t& label : images_.list.labels) {
      label = label_of[static_cast<std::size_t>(label)];
    }
    images_.list.classes = static_cast<std::int64_t>(images_.classes.size());
  }

 private:
  void take_header(std::int64_t line, const std::vector<std::string>& fields) {
    const NamedColumns named(fields);
    if (!named.are_clear()) {
      fail(name_, line, "no column of the header has a name that means " + named.missing());
    }
    columns_ = named.columns();
  }

  void check_path(std::int64_t line, const std::string& path) const {
    if (path.empty()) fail(name_, line, "the path is empty");
    if (!has_image_ending(path)) {
      fail(name_, line, fmt::format("{} is not the name of a .jpg, .jpeg or .png file", path));
    }
  }

  void take_label(std::int64_t line, const std::string& label) {
    const std::optional<std::int64_t> number = number_in(label);
    // The first label settles it for the file: guessing row by row would make "7" a name between
    // names in one list and a number in the next.
    if (!numbers_) {
      numbers_ = like_ != nullptr ? like_->classes.empty() : number.has_value();
      if (is_broken_number(label)) {
        fail(name_, line, fmt::format("label \"{}\", expected a whole number, or a name", label));
      }
    }
    if (!*numbers_) {
      if (like_ != nullptr &&
          !std::binary_search(like_->classes.begin(), like_->classes.end(), label)) {
        fail(name_, line, fmt::format("the training set has no class \"{}\"", label));
      }
      const auto next = static_cast<std::int32_t>(seen_.size());
      images_.list.labels.push_back(seen_.emplace(label, next).first->second);
      return;
    }
    const std::int64_t max = like_ != nullptr ? like_->list.classes - 1 : label_max;
    if (!number || *number < 0 || *number > max) {
      fail(name_, line,
           fmt::format("label \"{}\", expected a number from 0 to {}{}", label, max,
                       like_ != nullptr ? ", as the training set has" : ""));
    }
    images_.list.labels.push_back(static_cast<std::int32_t>(*number));
  }

  const std::string& name_;
  CsvImages& images_;
  const CsvImages* like_;
  bool first_ = true;
  Columns columns_;
  std::optional<bool> numbers_;               // Unknown before the first label.
  std::map<std::string, std::int32_t> seen_;  // Names, in order -> number of first occurrence.
};

CsvImages read_list(const std::filesystem::path& file, const CsvImages* like) {
  const std::vector<std::uint8_t> bytes = read_data_file(file, list_bytes_max);
  CsvImages images = parse_image_list({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                      file.string(), like);
  images.list.folder = file.parent_path();
  return images;
}

}  // namespace

void parse_csv(std::string_view text, const std::string& name,
               const std::function<void(std::int64_t, const std::vector<std::string>&)>& row) {
  refuse_nul(text, name);
  CsvReader reader(text, name);
  std::vector<std::string> fields;
  while (reader.next(fields)) row(reader.line(), fields);
}

CsvImages parse_image_list(std::string_view text, const std::string& name, const CsvImages* like) {
  CsvImages images;
  images.list.source = name;
  RowReader reader(name, images, like);
  parse_csv(text, name, [&](std::int64_t line, const std::vector<std::string>& fields) {
    reader.take(line, fields);
  });
  reader.finish();
  images.list.description =
      fmt::format("CSV {}: {} in {} from {}", like == nullptr ? "train" : "val",
                  worker::counted(std::ssize(images.list.labels), "image"),
                  worker::counted(images.list.classes, "class", "classes"), name);
  return images;
}

std::unique_ptr<Dataset> open_csv(const std::filesystem::path& file,
                                  const std::filesystem::path& validation_file, bool train) {
  CsvImages images = read_list(file, nullptr);
  if (!train) images = read_list(validation_file, &images);
  images.list.class_names = std::move(images.classes);
  return std::make_unique<ImageListDataset>(std::move(images.list));
}

}  // namespace ddprun::trainer
