package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
)

// The goal of admission: at the bytes plain second touch writes, most of the hits that
// writing everything gives, where second touch halves them. Drives without a cap.
func TestConversationAdmission(t *testing.T) {
	t.Parallel()
	prompts, err := ReadPrompts(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	run := func(name string, p AdmitParams) AdmitResult {
		r, err := RunAdmission(p, prompts)
		require.NoError(t, err)
		t.Logf("%-34s hit %.4f, %6d of %d written, hits refused %.4f, refused %v", name, r.HitRatio(), r.Written, r.Put,
			float64(r.RefusedHits)/float64(r.Referenced), r.Refused[1:])
		return r
	}
	all := run("everything", AdmitParams{DRAM: 5000})
	require.InDelta(t, .3664, all.HitRatio(), .0001)
	second := run("second touch", AdmitParams{SecondTouch: true})
	require.InDelta(t, .2134, second.HitRatio(), .0002)

	last := prompts[len(prompts)-1].At
	perDay := int64(float64(second.Written) * 86400 / last.Seconds())
	floor := map[int]float64{1000: .21, 2500: .225, 5000: .265, 10_000: .30, 20_000: .33}
	for _, dram := range []int{1000, 2500, 5000, 10_000, 20_000} {
		for _, share := range []float64{.5, 1, 2} {
			r := run("", AdmitParams{DRAM: dram, PerDay: int64(share * float64(perDay))})
			t.Logf("  ↑ DRAM of %d blocks, budget %.1f × second touch's writes", dram, share)
			require.LessOrEqual(t, float64(r.Written), share*float64(second.Written)*1.01)
			if share == 1 {
				require.GreaterOrEqual(t, r.HitRatio(), floor[dram], "%d blocks of DRAM", dram)
			}
		}
	}
}

// What is refused is accounted for, and what is written is findable: nothing lies on a
// drive whose parent does not.
func TestAdmissionAccounts(t *testing.T) {
	t.Parallel()
	prompts, err := ReadPrompts(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	prompts = prompts[:4000]
	r, err := RunAdmission(AdmitParams{DRAM: 2000, PerDay: 300_000}, prompts)
	require.NoError(t, err)
	refused := 0
	for why := index.Admitted + 1; why < index.Refusals; why++ {
		refused += r.Refused[why]
	}
	require.Positive(t, refused)
	require.LessOrEqual(t, r.Put-r.Written-refused, 2000, "what is neither written nor refused waits")
	require.Positive(t, r.RefusedHits)
}

// The sampled curve of the conversation trace is what exact LRU has.
func TestConversationMissRatioCurve(t *testing.T) {
	t.Parallel()
	requests, err := ReadConversation(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	r, err := index.NewReuse(8192)
	require.NoError(t, err)
	for _, q := range requests {
		r.Add(len(q))
		for _, id := range q {
			fp := fingerprint(id)
			if h := index.ReuseHash(binary.LittleEndian.Uint64(fp[:]), uint64(binary.LittleEndian.Uint32(fp[8:]))); h < r.Threshold() {
				r.Note(h)
			}
		}
	}
	for _, c := range exactLRU {
		got := r.HitRatio(float64(c.blocks))
		t.Logf("%6d blocks: %.4f from %.4f of the keys, exact LRU %.4f", c.blocks, got, r.Rate(), c.ratio)
		require.InDelta(t, c.ratio, got, .015, "%d blocks", c.blocks)
	}
}
