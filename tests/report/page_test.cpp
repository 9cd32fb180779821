// SPDX-License-Identifier: Apache-2.0
// The page as text: whatever stands in the results, no tag of theirs gets into it, its policy names
// the scripts it really holds, and what is no results.json is refused.
#include <foci/error.hpp>
#include <foci/report.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

namespace {

using foci::report::page;
using foci::report::Place;

constexpr const char* nasty = "</script><script>alert(1)</script><!-- {{script}} \" ' &";

std::string results_with(const std::string& text) {
  return nlohmann::json{{"schema", 1}, {"title", text}, {"verdict", {{"headline", text}}}}.dump();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(Page, IsWholeAndNeedsNothingElse) {
  const std::string text = page(results_with("a title"));
  EXPECT_TRUE(text.starts_with("<!doctype html>"));
  EXPECT_TRUE(text.ends_with("</html>\n"));
  EXPECT_NE(text.find("<title>a title</title>"), std::string::npos);
  EXPECT_EQ(text.find("{{"), text.find("{{", text.find("<script>")));  // only in scripts, if at all
  const std::regex outside(R"re(<(script|link|img|iframe)[^>]*(src|href)="(?!data:,"))re");
  EXPECT_FALSE(std::regex_search(text.substr(0, text.find("<script>")), outside));
  EXPECT_EQ(text, page(results_with("a title")));
}

TEST(Page, LetsNoTagOfTheDataIn) {
  const std::string plain = page(results_with("plain")), text = page(results_with(nasty));
  EXPECT_EQ(count_of(text, "<script"), count_of(plain, "<script"));
  EXPECT_EQ(count_of(text, "</script"), count_of(plain, "</script"));
  EXPECT_EQ(count_of(text, "<!--"), count_of(plain, "<!--"));
  EXPECT_NE(text.find("&lt;/script&gt;"), std::string::npos);
  const std::string open = "id=\"results\">";
  const std::size_t begin = text.find(open) + open.size();
  const std::string block = text.substr(begin, text.find("</script>", begin) - begin);
  EXPECT_EQ(nlohmann::json::parse(block).at("title"), nasty);
}

TEST(Page, SaysWhereItIsAndWhatMayRun) {
  const std::string file = page(results_with("a")), served = page(results_with("a"), Place::server);
  EXPECT_NE(file.find("data-place=\"file\""), std::string::npos);
  EXPECT_NE(file.find("connect-src 'none'"), std::string::npos);
  EXPECT_NE(served.find("data-place=\"server\""), std::string::npos);
  EXPECT_NE(served.find(foci::report::policy(Place::server)), std::string::npos);
  EXPECT_EQ(file.find("unsafe-inline"), std::string::npos);
  const std::size_t scripts = foci::report::charts().empty() ? 1 : 2;
  EXPECT_EQ(count_of(foci::report::policy(Place::file), "sha256-"), scripts + 1);
}

TEST(Page, RefusesWhatIsNoResult) {
  for (const char* text : {"", "[]", "{\"schema\": 1", "{}", "{\"schema\":\"1\"}", "{\"schema\":2}",
                           "{\"schema\":1,\"a\":\"\xff\"}"}) {
    EXPECT_THROW(page(text), foci::InvalidArgument) << text;
  }
  try {
    page("{\"schema\":2}");
  } catch (const foci::InvalidArgument& fault) {
    EXPECT_STREQ(fault.what(), "results of schema 2; this version reads 1");
  }
}

TEST(Page, IsWrittenWholeOrNotAtAll) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "foci-page";
  fs::create_directories(folder);
  const std::string results = (folder / "results.json").string();
  const std::string to = (folder / "report.html").string();
  std::ofstream(results) << results_with("first");
  foci::report::write_page(results, to);
  const auto size = fs::file_size(to);
  std::ofstream(results) << "{\"schema\":1,";
  EXPECT_THROW(foci::report::write_page(results, to), foci::FileError);
  EXPECT_EQ(fs::file_size(to), size);
  EXPECT_THROW(foci::report::write_page((folder / "none").string(), to), foci::FileError);
  fs::remove_all(folder);
}

}  // namespace
