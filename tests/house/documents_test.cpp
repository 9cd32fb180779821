// SPDX-License-Identifier: Apache-2.0
// The README's table is what `foci info --markdown` prints, and no link inside the repository is
// broken.
#include "house/links.hpp"
#include "house/run.hpp"
#include "house/tree.hpp"

#include <gtest/gtest.h>

namespace {

using house::File;
using house::Findings;

const std::filesystem::path root = FOCI_SOURCE_DIR;

TEST(Documents, TheTableIsFresh) {
  const auto readme = house::read(root / "README.md");
  const std::string open = "<!-- foci info -->\n", close = "<!-- /foci info -->";
  const auto begin = readme.find(open), end = readme.find(close);
  ASSERT_NE(begin, std::string::npos) << "README.md has no line " << open;
  ASSERT_NE(end, std::string::npos) << "README.md has no line " << close;
  const auto ran = house::run(FOCI_BINARY_DIR "/foci info --markdown");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_EQ(readme.substr(begin + open.size(), end - begin - open.size()), ran.output)
      << "`make docs` writes it again";
}

TEST(Documents, LinksLeadSomewhere) {
  const auto files = house::read_tree(root, {"docs"});
  std::size_t links = 0;
  for (const auto& file : files) {
    if (house::extension(file.path) == ".md") links += house::links_of(file).size();
  }
  EXPECT_GT(links, 10u);
  const auto found = house::check_links(
      files, [](const auto& path) { return std::filesystem::exists(root / path); });
  EXPECT_TRUE(found.empty()) << to_string(found);
}

TEST(Documents, BrokenLinksAreFound) {
  const std::vector<File> files = {
      {"docs/a.md", "# One thing, m = 1\n[b](b.md) [x](../README.md#two) [s](#one-thing-m--1)\n"},
      {"docs/b.md",
       "# B\n[gone](c.md)\n![gone](c.svg)\n[no](a.md#two)\n<img src=\"d.svg\">\n"
       "`[code](e.md)`\n```\n[code](f.md)\n# Not a heading\n```\n[no](#not-a-heading)\n"
       "[web](https://example.org/x) [site](mailto:x@y.z)\n"},
      {"README.md", "## Two\n## Two\n[second](#two-1) [folder](docs) [third](#two-2)\n"},
  };
  const std::set<std::string> paths = {"docs/a.md", "docs/b.md", "README.md", "docs"};
  EXPECT_EQ(house::check_links(files, [&](const auto& path) { return paths.contains(path); }),
            (Findings{{"docs/b.md", 2, "a link to nothing: c.md"},
                      {"docs/b.md", 3, "a link to nothing: c.svg"},
                      {"docs/b.md", 4, "a link to no heading: a.md#two"},
                      {"docs/b.md", 5, "a link to nothing: d.svg"},
                      {"docs/b.md", 11, "a link to no heading: #not-a-heading"},
                      {"README.md", 3, "a link to no heading: #two-2"}}));
}

}  // namespace
