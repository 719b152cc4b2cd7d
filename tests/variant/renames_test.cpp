#include "variant/renames.hpp"

#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

const DeviceFacts kHopper = gpu_limits("sm_90a");

// Every knob of the family at once, as a run of before the renaming stored it.
TEST(Renames, StoredVariantsParseAsTheSameConfig) {
  const std::string stored =
      "fwd_sm90_stream:row_groups=2,key_groups=1,cluster=1,tile_keys=128,stages=2,query_stages=1,schedule=persistent,"
      "waves=even,overlap=products,product_order=alternating,reference=first_tile,turns=any,starts=together,"
      "vote=after_products,masking=apart,producer=own_group,release=after_copies,shares=ahead,trigger=last_copies,"
      "store=rows,tile_order=rows_first,pairs=apart,evict_first=but_opening,arrival=ahead,upkeep=conditions,"
      "sums=beside_values,scaling=step_ahead,packing=step_later,adding=at_end,sizes=any,programs=all,outputs=any,"
      "teams=1,min_blocks=1";
  const std::string now =
      "fwd_sm90_persistent:m_warpgroups=2,kv_groups=1,cluster=1,block_n=128,stages=2,q_stages=1,"
      "scheduler=static_persistent,grid=balanced,softmax_overlap=qk_pv,gemm_order=interleaved,row_max=stale_tile,"
      "pingpong=off,stagger_splits=off,overflow_check=deferred,mask_path=separate_loop,producer=warpgroup,"
      "setmaxnreg=after_loads,tile_setup=early,pdl_trigger=last_load,epilogue=smem_b128,tile_order=row_major,"
      "share_causal_tail=off,evict_first=all_but_first_q_2k,barrier_wait=try_wait_early,stage_release=predicated,"
      "rowsum_reduce=beside_pv,scale_placement=step_ahead,convert_placement=step_later,rowsum_placement=at_end,"
      "specialize=none,prune=off,o_layout=strided,virtual_ctas=1,min_blocks=1,rowsum=fadd";
  EXPECT_EQ(with_current_names(stored), now);
  const Workload workload = parse_workload("b4h16l4096d128:fp16:causal_top_left");
  // Today's texts have the specialization last; those of before have it among the knobs, and are read alike.
  const std::string specialization = "specialize=none,prune=off,o_layout=strided,";
  std::string written = now;
  // A later knob stands behind all others there, and in its place in what is written today.
  const std::string later = "rowsum=fadd";
  written.erase(written.find("," + later), later.size() + 1);
  written.insert(written.find("pingpong="), later + ",");
  written.erase(written.find(specialization), specialization.size());
  written += "," + specialization.substr(0, specialization.size() - 1);
  EXPECT_EQ(describe(parse_variant(now, workload, kHopper)), written);
}

// What was stored before a knob was there had the value that stands for that.
TEST(Renames, KnobsThatCameLater) {
  EXPECT_EQ(with_current_names("fwd_sm90_decode:block_m=8,rescale=conditional"),
            "fwd_sm90_decode:block_m=8,rescale=conditional,max_splits=0");
  EXPECT_EQ(with_current_names("fwd_sm90_decode:block_m=8,max_splits=4"), "fwd_sm90_decode:block_m=8,max_splits=4");
  EXPECT_EQ(with_current_names("fwd_sm90_decode"), "fwd_sm90_decode");
  EXPECT_EQ(with_current_names("fwd_sm80:block_m=64"), "fwd_sm80:block_m=64,rowsum=fadd");
  EXPECT_EQ(with_current_names("fwd_sm80:rowsum=mma,block_m=64"), "fwd_sm80:rowsum=mma,block_m=64");
  EXPECT_EQ(with_current_names("fwd_sm90_persistent:rowsum_reduce=at_end"),
            "fwd_sm90_persistent:rowsum_reduce=at_end,rowsum=fadd");
  EXPECT_EQ(with_current_names("fwd_cpu:block_m=64"), "fwd_cpu:block_m=64,lanes=queries,split_keys=0");
}

// A knob that is gone is read where it had the value of what is there today, and refused by name where it had another.
TEST(Renames, KnobsThatAreGone) {
  const std::string today = "fwd_sm90_persistent:rowsum=mma,min_blocks=1";
  for (const char* stored : {"fwd_sm90_persistent:page_loads=thread,rowsum=mma,min_blocks=1",
                             "fwd_sm90_persistent:rowsum=mma,page_loads=thread,min_blocks=1",
                             "fwd_sm90_persistent:rowsum=mma,min_blocks=1,page_loads=thread"})
    EXPECT_EQ(with_current_names(stored), today);
  EXPECT_EQ(with_current_names("fwd_sm90_persistent:page_loads=thread"), "fwd_sm90_persistent");
  EXPECT_EQ(with_current_names("fwd_sm80:page_loads=thread,rowsum=mma"), "fwd_sm80:page_loads=thread,rowsum=mma");
  try {
    (void)parse_variant(with_current_names("fwd_sm90_persistent:page_loads=warp"), parse_workload("b1h8l512d64"),
                        kHopper);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), testing::HasSubstr("unknown knob \"page_loads\""));
  }
}

TEST(Renames, EveryFamilyOfBefore) {
  const Workload workload = parse_workload("b1h8l512d64");
  const Workload decode = parse_workload("b8h32hkv4l1k8192d128");
  for (const auto& [stored, shape] : std::vector<std::pair<std::string, Workload>>{
           {"fwd_sm90:chunk=64,chunks=4,score_lead=2,value_waits=2,product_steps=2,product_start=8,late_packing=on,"
            "prefetch_scores=off,reference=first_keys,mask=scores,row_sum=ones_column,vote=after_writing,exchange=half,"
            "weights=first,kept_columns=with_sent,placing=in_order,key_heads=own,multicast=none,opening=maps_first,"
            "producer=first_warp,trigger=first_scores,store=pieces,tile_order=ascending,sizes=fixed",
            workload},
           {"fwd_sm80:key_splits=4,shared_layout=swizzled,late_copies=off,handshake=stage,rescale=when_far,"
            "tile_order=mirrored",
            workload},
           {"fwd_decode:groups=4,rounds=2,fetch=bytes_128,shared_layout=padded,rescale=when_far", decode},
           {"fwd_decode_sm90:groups=4,l2_bytes=128,prefetch=64,mergers=1,division=columns,cut=at_jobs,producer=on,"
            "dependent=off",
            decode}}) {
    EXPECT_NO_THROW(parse_variant(with_current_names(stored), shape, kHopper)) << stored;
    EXPECT_NE(with_current_names(stored), stored);
  }
}

// Of fwd_sm80 alone: fwd_sm90_persistent still has the order.
TEST(Renames, PairedTilesOfFwdSm80AreInTheOrderOfFwdSm90Split) {
  for (const char* stored : {"fwd_sm80:block_m=64,tile_order=mirrored", "fwd_sm80:block_m=64,tile_order=paired"})
    EXPECT_EQ(with_current_names(stored), "fwd_sm80:block_m=64,tile_order=lpt_then_spt,rowsum=fadd");
  EXPECT_EQ(with_current_names("fwd_sm90_stream:tile_order=mirrored"),
            "fwd_sm90_persistent:tile_order=paired,rowsum=fadd");
}

TEST(Renames, LeavesCurrentAndUnknownTextsAlone) {
  for (const char* text : {"fwd_sm90_split:cluster=2", "fwd_cpu:pack_gqa=off,lanes=columns,split_keys=512", "fwd_cpu",
                           "", "nothing:a=b", "ladder:step=swizzle"})
    EXPECT_EQ(with_current_names(text), text);
  EXPECT_EQ(with_current_names("fwd_decode"), "fwd_sm80_decode");
  EXPECT_EQ(with_current_names("ladder:rung=swizzle"), "ladder:step=swizzle");
}

TEST(Renames, StoredCpuVariantsParse) {
  const Workload workload = parse_workload("b1h8hkv2l1k512d64:fp32");
  const DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v4-amx"));
  for (const auto& [stored, now] :
       {std::pair{"fwd_cpu:unit=matrix,block_m=512,key_heads=own,prefetch=0,threads=2",
                  "fwd_cpu:unit=matrix,block_m=512,pack_gqa=off,prefetch=0,threads=2,lanes=queries,split_keys=0"},
        std::pair{"fwd_cpu:unit=matrix,key_heads=shared",
                  "fwd_cpu:unit=matrix,pack_gqa=on,lanes=queries,split_keys=0"}}) {
    EXPECT_EQ(with_current_names(stored), now);
    EXPECT_EQ(describe(parse_variant(with_current_names(stored), workload, device)),
              describe(parse_variant(now, workload, device)));
  }
}

// The readable part of an id is of limited length: the hash tells variants apart.
TEST(Renames, IdsSayWhatIsNotStandardAndStayShort) {
  const Workload workload = parse_workload("b4h16l4096d128:fp16:causal_top_left");
  const Variant plain = parse_variant("fwd_sm90_persistent", workload, kHopper);
  EXPECT_LT(plain.id().size(), 160U) << plain.id();
  EXPECT_THAT(plain.id(), testing::HasSubstr(",+")) << "most knobs of this default are not at their standard value";
  Variant other = parse_variant("fwd_sm90_persistent:min_blocks=2", workload, kHopper);
  EXPECT_NE(other.id(), plain.id());
  for (const Knob& knob : other.family->knobs())
    other.config[static_cast<std::size_t>(&knob - other.family->knobs().data())] = knob.standard;
  EXPECT_THAT(other.id(), testing::HasSubstr(".standard."));
}

// A name that a user types from an old note is refused with the new one.
TEST(Renames, OldNamesOfFamiliesAreRefusedWithTheNewOne) {
  try {
    (void)find_family("fwd_sm90_stream");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), testing::HasSubstr("is called fwd_sm90_persistent"));
  }
}

}  // namespace
}  // namespace heed
