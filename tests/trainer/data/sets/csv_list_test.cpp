// CSV lists of images: what is read, and which line is named when one is wrong.
#include "trainer/data/sets/csv_list.h"

#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"

using namespace ddprun::trainer;

namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(const std::string& text) {
  Rows rows;
  parse_csv(text, "list",
            [&](std::int64_t, const std::vector<std::string>& fields) { rows.push_back(fields); });
  return rows;
}

CsvImages list(const std::string& text, const CsvImages* like = nullptr) {
  return parse_image_list(text, "list.csv", like);
}

std::string list_error(const std::string& text, const CsvImages* like = nullptr) {
  return message_of<DataError>([&] { list(text, like); });
}

}  // namespace

TEST_CASE("CSV is read as RFC 4180 has it", "[trainer][data][csv]") {
  CHECK(rows_of("a,b\nc,d") == Rows{{"a", "b"}, {"c", "d"}});
  CHECK(rows_of("a,b\r\n\r\nc,d\r\n") == Rows{{"a", "b"}, {"c", "d"}});
  CHECK(rows_of("\"a,1\",\"say \"\"x\"\"\"\n\"two\nlines\",") ==
        Rows{{"a,1", "say \"x\""}, {"two\nlines", ""}});
  CHECK(rows_of("\xef\xbb\xbf"
                "a,b") == Rows{{"a", "b"}});
  CHECK(rows_of("a , b\r\n\" c \" ,\td e \n \n") == Rows{{"a", "b"}, {" c ", "d e"}});
  CHECK(rows_of("") == Rows{});
  CHECK(rows_of(",") == Rows{{"", ""}});
  CHECK(rows_of("a,b\r") == Rows{{"a", "b"}});
}

TEST_CASE("nothing behind the end of a list is looked at", "[trainer][data][csv]") {
  for (const std::string_view text : {"a,\"b\"|\" c", "a,\"b\"\r|\nc", "a,|\"b\""}) {
    const std::size_t end = text.find('|');
    const std::string behind = std::string(text.substr(0, end)) + std::string(text.substr(end + 1));
    Rows rows;
    parse_csv(std::string_view(behind).substr(0, end), "list",
              [&](std::int64_t, const auto& fields) { rows.push_back(fields); });
    CHECK(rows == rows_of(std::string(text.substr(0, end))));
  }
}

TEST_CASE("a list has a header or not, and labels are numbers or names", "[trainer][data][csv]") {
  const CsvImages numbers = list("a.jpg,3\nb.JPEG,0\n");
  CHECK(numbers.list.labels == std::vector<std::int32_t>{3, 0});
  CHECK(numbers.list.classes == 4);
  CHECK(numbers.list.lines == std::vector<std::int32_t>{1, 2});

  const CsvImages names = list("label,path\ndog,a.jpg\n\"a, cat\",b.jpg\ndog,c.jpg\n");
  CHECK(names.list.labels == std::vector<std::int32_t>{1, 0, 1});
  CHECK(names.classes == std::vector<std::string>{"a, cat", "dog"});
  CHECK(names.list.paths[1] == "b.jpg");
  CHECK(names.list.lines == std::vector<std::int32_t>{2, 3, 4});

  CHECK(list("a.jpg, 10\nb.jpg, 9\n").list.labels == std::vector<std::int32_t>{10, 9});
}

TEST_CASE("a header says which columns are meant, or the first of two are",
          "[trainer][data][csv]") {
  const auto label_of = [](const std::string& header, const std::string& row) {
    const CsvImages images = list(header + "\n" + row + "\n");
    CHECK(images.list.paths[0] == "a.jpg");
    return images.list.labels[0];
  };
  CHECK(label_of("image,patient,labels", "a.jpg,4,1") == 1);
  CHECK(label_of("Id,Category,Image_Name", "9,1,a.jpg") == 1);
  CHECK(label_of(",file_name,split,class_label", "0,a.jpg,4,1") == 1);
  CHECK(label_of("split,filepath,target", "4,a.jpg,1") == 1);
  // Of two columns the order says it.
  CHECK(label_of("what,ever", "a.jpg,1") == 1);
  CHECK(label_of("image,breed", "a.jpg,1") == 1);
  CHECK(label_of("picture,label", "a.jpg,1") == 1);
  // What begins with an image is no header, and two may be followed by more.
  CHECK(label_of("a.jpg,1,class", "a.jpg,2,file") == 1);
  CHECK(list("a.jpg,file,category\nb.jpg,class,1\n").list.labels ==
        std::vector<std::int32_t>{1, 0});
  CHECK(list("a.jpg,file\nb.jpg,class\n").classes == std::vector<std::string>{"class", "file"});
}

TEST_CASE("a header that says half of it is not guessed", "[trainer][data][csv]") {
  CHECK(list_error("image,patient,labelled\na.jpg,4,1\n") ==
        "list.csv, line 1: no column of the header has a name that means the labels: call one "
        "\"label\"");
  CHECK(contains(list_error("patient,picture,label\n4,a.jpg,1\n"),
                 "line 1: no column of the header has a name that means the paths: call one "
                 "\"path\""));
  CHECK(contains(list_error("what,ever,more\na.jpg,1,x\n"),
                 "that means the paths or the labels: call one \"path\" and one \"label\""));
  CHECK(contains(list_error("label,picture\n1,a.jpg\n"), "means the paths: call one \"path\""));
  CHECK(contains(list_error("breed,image\n1,a.jpg\n"), "means the labels: call one \"label\""));
}

TEST_CASE("a validation list has the classes of the training list", "[trainer][data][csv]") {
  const CsvImages names = list("a.jpg,cat\nb.jpg,dog\n");
  CHECK(list("c.jpg,dog\n", &names).list.labels == std::vector<std::int32_t>{1});
  CHECK(list("c.jpg,dog\n", &names).list.classes == 2);
  CHECK(contains(list_error("c.jpg,cat\nd.jpg,cow\n", &names), "line 2: the training set has no"));

  const CsvImages numbers = list("a.jpg,0\nb.jpg,4\n");
  CHECK(list("c.jpg,1\n", &numbers).list.classes == 5);
  CHECK(contains(list_error("c.jpg,5\n", &numbers),
                 "line 1: label \"5\", expected a number from 0 "
                 "to 4"));
  CHECK(contains(list_error("c.jpg,cat\n", &numbers), "line 1: label \"cat\""));
}

TEST_CASE("one of a thing is called so", "[trainer][data][csv]") {
  CHECK(contains(list("a.jpg,cat\n").list.description, "1 image in 1 class from"));
  CHECK(contains(list("a.jpg,cat\nb.jpg,dog\n").list.description, "2 images in 2 classes from"));
}

TEST_CASE("a bad line is named with its number", "[trainer][data][csv]") {
  CHECK(list_error("") == "list.csv lists no images");
  CHECK(list_error("path,label\n") == "list.csv lists no images");
  CHECK(list_error("a.jpg,1\n\nb.jpg\n")
            .ends_with("list.csv, line 3: 1 field, expected 2: commas stand between fields, and "
                       "nothing else"));
  CHECK(contains(list_error("a.jpg;1\n"), "line 1: 1 field, expected 2: commas stand between"));
  CHECK(contains(list_error("a.jpg,1\nb.jpg,1,2\n"), "line 2: 3 fields, expected 2"));
  CHECK(contains(list_error("a.jpg,1\nb.jpg,one\n"), "line 2: label \"one\""));
  CHECK(contains(list_error("a.jpg,1\nb.jpg,-1\n"), "line 2: label \"-1\""));
  CHECK(list("a.jpg,1.2.3\nb.jpg,nan\n").classes == std::vector<std::string>{"1.2.3", "nan"});
  CHECK(contains(list_error("a.jpg,3.0\n"), "line 1: label \"3.0\", expected a whole number, or"));
  CHECK(contains(list_error("a.jpg,99999999999999999999\n"), "line 1: label \"9999"));
  CHECK(contains(list_error("a.jpg,1\nb.jpg,4000000000\n"), "line 2: label \"4000000000\""));
  CHECK(contains(list_error("a.jpg,1\nb.jpg,\n"), "line 2: the label is empty"));
  CHECK(contains(list_error("a.jpg,1\n,1\n"), "line 2: the path is empty"));
  CHECK(contains(list_error("a.jpg,1\nb.bmp,1\n"), "line 2: b.bmp is not"));
  CHECK(contains(list_error("a.bmp,cat\nb.jpg,cat\n"), "line 1: a.bmp is not"));
  CHECK(contains(list_error("a.jpg,1\n\"b\n.jpg,1\n"), "line 2: a quoted field does not end"));
  CHECK(contains(list_error("a.jpg,1\n\"b.jpg\"x,1\n"), "line 2: text after a quoted field"));
  CHECK(contains(list_error("\"a\n.jpg\",1\nb.bmp,1\n"), "line 3: b.bmp is not"));
  CHECK(contains(list_error("photo,3\nb.jpg,1\n"), "line 1: photo is not"));  // And no header.
}

TEST_CASE("a list with a NUL byte is refused, with the line and the whole reason",
          "[trainer][data][csv]") {
  using namespace std::string_literals;
  const std::string reason = "it has a NUL byte, which no text has: save the list as UTF-8 text";
  for (const std::string& line : {"b.jpg,1\0"s, "b\0.jpg,1"s, "\"b.jpg\",\"1\0\""s, "\0"s}) {
    const std::string message = list_error("a.jpg,0\n\n" + line + "\nc.jpg,1\n");
    CHECK(message == "list.csv, line 3: " + reason);
  }
  CHECK(list_error("\xff\xfe"
                   "a\0.\0"s) == "list.csv, line 1: " + reason);
}

TEST_CASE("seventy thousand names are seventy thousand classes", "[trainer][data][csv]") {
  std::string text = "path,label\n";
  for (int i = 0; i < 70'000; ++i) {
    text += std::to_string(i) + ".jpg,name" + std::to_string(i) + "\n";
  }
  const CsvImages images = list(text);
  CHECK(images.list.classes == 70'000);
  CHECK(images.classes[static_cast<std::size_t>(images.list.labels[69'999])] == "name69999");
}

TEST_CASE("any changed or missing byte gives a list or a line's number", "[trainer][data][csv]") {
  const std::string text = "path,label\r\n\"a,\"\"b\"\".jpg\",cat\nb.jpg,dog\r\n";
  std::minstd_rand random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = text.substr(0, random() % (text.size() + 1));
    for (int k = 0; k < 3 && !changed.empty(); ++k) {
      changed[random() % changed.size()] = ",\"\n\r\0x.7"[random() % 8];
    }
    const std::string error = list_error(changed);
    if (!error.empty()) CHECK(error.starts_with("list.csv"));
  }
}

TEST_CASE("paths are relative to the list, and errors name its line", "[trainer][data][csv]") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "images");
  write_bytes(folder / "images/a.jpg", jpeg({.width = 9, .height = 7}));
  write_bytes(folder / "train.csv",
              "images/a.jpg,x\nimages/none.jpg,y\n" + (folder / "images/a.jpg").string() + ",y\n");
  write_bytes(folder / "val.csv", "images/a.jpg,y\n");

  const auto dataset = open_csv(folder / "train.csv", "", true);

  CHECK(dataset->size() == 3);
  CHECK(dataset->classes() == 2);
  CHECK(read_planes(*dataset, 0).size() == 3 * 9 * 7);
  CHECK(read_planes(*dataset, 2) == read_planes(*dataset, 0));
  const std::string error = message_of<ImageError>([&] { read_planes(*dataset, 1); });
  CHECK(contains(error, (folder / "images/none.jpg").string() + " (line 2 of " +
                            (folder / "train.csv").string() + ")"));
  CHECK(open_csv(folder / "train.csv", folder / "val.csv", false)->label(0) == 1);
  CHECK(contains(message_of<DataError>([&] { open_csv(folder / "no.csv", "", true); }), "no.csv"));
}
