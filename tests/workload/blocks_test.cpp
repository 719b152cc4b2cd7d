// Lists of blocks of workloads: text, refusals, what patterns stand for and what they count.
#include "workload/blocks.hpp"

#include "testing.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

TEST(Blocks, EveryTextReadsBackTheSame) {
  for (const char* blocks :
       {"64", "128", "64x128", "128x64", "64/window0", "128/window3+global1", "64/dilated2x3", "64//h",
        "64x128/window1+global2+random3+stride4+wavefront5+density0.25@9/bh", "64/random1/b", "64/density1"}) {
    const std::string text = std::string("b2h4l300k500d64:fp16:blocks=") + blocks;
    EXPECT_EQ(to_string(parse_workload(text)), text);
  }
  const auto blocks_of = [](const std::string& text) { return parse_workload("b1h1l64d64:blocks=" + text).blocks; };
  EXPECT_EQ(blocks_of("64/longformer"), blocks_of("64/window4+global1"));
  EXPECT_EQ(blocks_of("64/bigbird@5"), blocks_of("64x64/random3+global2+window1@5"));
}

TEST(Blocks, PartsThatCannotBeAreNamed) {
  for (const auto& [blocks, named] : {std::pair{"", "\"\" is no size"},
                                      {"32", "\"32\" is no size"},
                                      {"64x", "\"64x\" is no size"},
                                      {"64x256", "64x256"},
                                      {"64/", "\"\" is no part of blocks"},
                                      {"64/circle", "\"circle\" is no part of blocks; the parts are windowN"},
                                      {"64/window", "\"window\" of blocks has no number"},
                                      {"64/window-1", "window-1"},
                                      {"64/window2000000", "at most 1048576"},
                                      {"64/window1+window2", "says again"},
                                      {"64/longformer+global2", "says again"},
                                      {"64/window1+", "\"\" is no part"},
                                      {"64/dilated2", "dilatedNxM"},
                                      {"64/dilated2x1", "M is 2 or more"},
                                      {"64/global0", "\"global0\" names no block"},
                                      {"64/stride-2", "\"stride-2\" names no block"},
                                      {"64/density0", "\"density0\" names no block"},
                                      {"64/density1.5", "density1.5"},
                                      {"64/densitynan", "densitynan"},
                                      {"64/window1@4", "a seed of 4 where no blocks are drawn"},
                                      {"64/random1@0", "leave it out"},
                                      {"64/random1@x", "x"},
                                      {"64/window1/l", "\"l\" are no dimensions"},
                                      {"64/window1/bb", "\"bb\" are no dimensions"}}) {
    try {
      parse_workload(std::string("b2h4l64d64:blocks=") + blocks);
      ADD_FAILURE() << blocks << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_workload) << blocks;
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << blocks << ": " << error.what();
    }
  }
  EXPECT_THROW(parse_workload("b64h64l100000d64:blocks=64/random1/bh"), Error) << "lists of more than 2^28 numbers";
}

// A row of text for each block of rows: # where its list has the block of keys.
std::string drawn(const std::string& text) {
  const Workload w = parse_workload(text);
  const BlockLists lists = block_lists(w);
  std::string all;
  for (std::int64_t row = 0; row < lists.rows; ++row) {
    for (std::int64_t key = 0; key * w.blocks->keys < w.len_k; ++key) all += lists.has(0, 0, row, key) ? '#' : '.';
    all += ' ';
  }
  return all;
}

TEST(Blocks, PatternsStandForTheirLists) {
  EXPECT_EQ(drawn("b1h1l256k192d64:blocks=64"), "### ### ### ### ");
  EXPECT_EQ(drawn("b1h1l256d64:blocks=64/window0"), "#... .#.. ..#. ...# ");
  EXPECT_EQ(drawn("b1h1l320d64:blocks=64/window1+global1"), "##### ###.. ####. #.### #..## ");
  EXPECT_EQ(drawn("b1h1l448d64:blocks=64/dilated1x2"), "#.#.... .#.#... #.#.#.. .#.#.#. ..#.#.# ...#.#. ....#.# ");
  EXPECT_EQ(drawn("b1h1l256d64:blocks=64/stride2"), "#.#. .#.# #.#. .#.# ");
  EXPECT_EQ(drawn("b1h1l256d64:blocks=64/wavefront3"), "#..# ..#. .#.. #..# ");
  // Own blocks of other sizes, and of lengths that differ: at the bottom right, unless the mask says otherwise.
  EXPECT_EQ(drawn("b1h1l256d64:blocks=128x64/window0"), "##.. ..## ");
  EXPECT_EQ(drawn("b1h1l256d64:blocks=64x128/window0"), "#. #. .# .# ");
  EXPECT_EQ(drawn("b1h1l128k256d64:blocks=64/window0"), "..#. ...# ");
  EXPECT_EQ(drawn("b1h1l128k256d64:causal_bottom_right:blocks=64/window0"), "..#. ...# ");
  EXPECT_EQ(drawn("b1h1l128k256d64:window=-1/5:blocks=64/window0"), "..#. ...# ");
  EXPECT_EQ(drawn("b1h1l128k256d64:causal_top_left:blocks=64/window0"), "#... .#.. ");
  EXPECT_EQ(drawn("b1h1l128k256d64:window_top_left=-1/5:blocks=64/window0"), "#... .#.. ");
  EXPECT_EQ(drawn("b1h1l256k128d64:blocks=64/window0"), ".. .. #. .# ");
}

TEST(Blocks, ListsAreDrawnFromTheSeed) {
  const std::string text = "b2h3l500d64:blocks=64/density0.5@";
  const BlockLists shared = block_lists(parse_workload(text + "7"));
  EXPECT_EQ(shared.counts, block_lists(parse_workload(text + "7")).counts);
  EXPECT_NE(shared.numbers, block_lists(parse_workload(text + "8")).numbers);
  EXPECT_EQ(shared.counts.size(), 8U);
  const BlockLists own = block_lists(parse_workload(text + "7/bh"));
  ASSERT_EQ(own.counts.size(), 48U);
  EXPECT_NE(std::vector(own.counts.begin(), own.counts.begin() + 8),
            std::vector(own.counts.begin() + 8, own.counts.begin() + 16));
  // Behind each list is a block that it has not, so that a kernel which reads on shows it.
  for (std::size_t i = 0; i < shared.counts.size(); ++i) {
    const std::int32_t behind = shared.numbers[(i + 1) * static_cast<std::size_t>(shared.most) - 1];
    EXPECT_FALSE(shared.has(0, 0, static_cast<std::int64_t>(i), behind));
  }
}

TEST(Blocks, ScoresAreThoseThatListsAndMaskLeave) {
  for (const char* text :
       {"b2h4hkv2l150k230d64:blocks=64/density0.4@3/bh", "b1h2l150k230d64:causal_bottom_right:blocks=64x128/random1@2",
        "b3h2l300d64:window=70/9:blocks=128x64/window0+stride2", "b4h2l150k200d64:ragged:blocks=64/density0.5/b",
        "b1h1l100k130d64:causal_top_left:blocks=64"}) {
    const Workload w = parse_workload(text);
    const BlockLists lists = block_lists(w);
    const std::vector<EntryLengths> lengths = lengths_of(w);
    double scores = 0;
    for (std::int64_t b = 0; b < w.batch; ++b) {
      const Workload entry = entry_of(w, lengths[static_cast<std::size_t>(b)]);
      for (std::int64_t h = 0; h < w.heads; ++h)
        for (std::int64_t row = 0; row < entry.len_q; ++row)
          for (std::int64_t key = 0; key < entry.len_k; ++key)
            if (entry.keys_of(row).contains(key) && lists.has(b, h, row / w.blocks->rows, key / w.blocks->keys))
              ++scores;
    }
    EXPECT_DOUBLE_EQ(w.visible_scores(), scores) << text;
    EXPECT_DOUBLE_EQ(w.flops(), 4.0 * 64 * scores) << text;
  }
  // Of many entries as many are looked at as tell the sum.
  Workload many = parse_workload("b4096h1l64d64:blocks=64/density0.5@3/b");
  many.batch = std::int64_t{1} << 20;
  many.blocks->by_batch = false;
  EXPECT_GE(many.visible_scores(), 0);
}

}  // namespace
}  // namespace heed
