package observe

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

func TestLogTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	l, r := WithTail(slog.New(slog.DiscardHandler))
	for i := range logLines + 10 {
		l.With("n", 1).Info("line", "i", i)
		l.Debug("not kept")
	}
	l.WithGroup("g").Warn("last", "long", strings.Repeat("x", 5000))
	lines := r.Lines()
	require.Len(t, lines, logLines)
	require.Contains(t, lines[0], "i=11")
	require.Contains(t, lines[logLines-1], "msg=last g.long=xxx")
	require.LessOrEqual(t, len(lines[logLines-1]), logLineBytes)
}

func TestParseSmart(t *testing.T) {
	t.Parallel()
	p := make([]byte, smartPage)
	p[3], p[5] = 98, 4
	binary.LittleEndian.PutUint64(p[48:], 2_000_000) // 1.024 TB
	binary.LittleEndian.PutUint64(p[128:], 2400)     // 100 days
	w := parseSmart(p)
	require.Equal(t, skep.WearStats{Known: true, PercentUsed: 4, Spare: 98, BytesWritten: 1_024_000_000_000, PowerOnHours: 2400, DaysLeft: 2400}, w)
	p[5] = 120
	require.Zero(t, parseSmart(p).DaysLeft, "past its promised life")
	p[5] = 0
	require.Zero(t, parseSmart(p).DaysLeft, "cannot be said")
	for i := range p {
		p[i] = 0xff
	}
	require.Positive(t, parseSmart(p).BytesWritten, "counters do not overflow")
	require.False(t, parseSmart(p[:100]).Known)
}

func TestProgramsAreBounded(t *testing.T) {
	t.Parallel()
	var p Programs
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range maxPrograms + 50 {
		var fp index.Fingerprint
		binary.LittleEndian.PutUint64(fp[:], rng.Uint64())
		p.Hinted(strconv.Itoa(i), []index.Fingerprint{fp})
	}
	require.Len(t, p.Snapshot(), maxPrograms)
}

func TestWorks(t *testing.T) {
	t.Parallel()
	var w Works
	a, b := w.Begin("scrub", 100), w.Begin("rebalance", 0)
	a.Add(40)
	require.Equal(t, "scrub", w.Snapshot()[0].Name)
	require.EqualValues(t, 40, w.Snapshot()[0].Done)
	a.End()
	a.End()
	require.Len(t, w.Snapshot(), 1)
	b.End()
	require.Empty(t, w.Snapshot())
}

// What happens after the end of a store is told to nobody, also when somebody still waits.
func TestEventsAfterTheEnd(t *testing.T) {
	t.Parallel()
	l := NewEvents(1, 4, time.Now)
	r, err := l.Reader(skep.Cursor{})
	require.NoError(t, err)
	n, more, err := r.Take(make([]skep.Event, 1))
	require.NoError(t, err)
	require.Zero(t, n)
	l.Close()
	<-more
	l.Emit(skep.Event{Kind: skep.EventEvicted})
	_, _, err = r.Take(make([]skep.Event, 1))
	require.Equal(t, skep.Closed, skep.KindOf(err))
}

// A reader goes on where a cursor says, and is told how much of what came since it has missed.
func TestReadersOfEvents(t *testing.T) {
	t.Parallel()
	l := NewEvents(3, 4, time.Now)
	for i := range 10 {
		l.Emit(skep.Event{Depth: i})
	}
	take := func(from skep.Cursor) (lost uint64, depths []int) {
		r, err := l.Reader(from)
		require.NoError(t, err)
		into := make([]skep.Event, 20)
		n, _, err := r.Take(into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			if e.Kind == skep.EventGap {
				lost += e.Lost
			} else {
				depths = append(depths, e.Depth)
			}
		}
		require.Equal(t, uint64(10), r.Before().Seq)
		return lost, depths
	}
	lost, depths := take(skep.Cursor{})
	require.Zero(t, lost)
	require.Empty(t, depths, "it begins now")
	lost, depths = take(skep.Cursor{Epoch: 3, Seq: 9})
	require.Zero(t, lost)
	require.Equal(t, []int{8, 9}, depths)
	lost, depths = take(skep.Cursor{Epoch: 3, Seq: 2})
	require.EqualValues(t, 5, lost)
	require.Equal(t, []int{6, 7, 8, 9}, depths)
	lost, depths = take(skep.Cursor{Epoch: 2, Seq: 2})
	require.EqualValues(t, 10, lost, "of another time it was open")
	require.Empty(t, depths)
	_, err := l.Reader(skep.Cursor{Epoch: 3, Seq: 12})
	require.Equal(t, skep.Invalid, skep.KindOf(err))
}

// What a snapshot says is of every lookup before it: of batches that were handed over and that nobody
// has taken yet, too, for the goroutine that takes them rests in between.
func TestASnapshotSpeaksOfWhatWaits(t *testing.T) {
	t.Parallel()
	p, err := NewProfile(1 << 16)
	require.NoError(t, err)
	keys := make([]skep.Key, 4*profileBatch)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][8:], uint64(i))
	}
	for range 8 { // the first asks for each, the others find them
		p.Saw(1, keys)
	}
	require.NotEmpty(t, p.queue)
	st := p.Snapshot(1, 1<<30, 1<<30)
	require.Empty(t, p.queue)
	require.Zero(t, st.Dropped)
	require.EqualValues(t, 8*len(keys), st.References)
	require.InDelta(t, 7./8, st.DRAM, .01)
}

// fixed is a source of metrics.
type fixed struct{ stats skep.Stats }

func (f fixed) Stats(context.Context) (skep.Stats, error) { return f.stats, nil }
func (f fixed) CatalogDisk() (Disk, bool)                 { return Disk{Size: 3, Free: 2, Reserve: 1}, true }
func (f fixed) EachSpace(show func(tenant, name string, c *Spaces)) {
	c := &Spaces{}
	c.Keys.Add(5)
	c.Hits.Add(4)
	c.Tiers.Add(skep.TierDRAM, 7)
	c.Missed.Add(skep.Evicted)
	show("t", "n", c)
}

// A collector shows what its source says, and nothing that a namespace has none of. Reasons that alerts wait for are
// there before the first one.
func TestCollector(t *testing.T) {
	t.Parallel()
	var counts Counts
	counts.PutBlocks.Add(11)
	counts.Declined.Add(skep.Quota)
	counts.Tiers.Add(skep.TierDevice, 13)
	var st skep.Stats
	counts.Fill(&st)
	reg := prometheus.NewRegistry()
	c := &Collector{}
	reg.MustRegister(c)
	c.Show(fixed{st})
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += "|" + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"skep_put_declined_total|" + skep.Quota.Error(): 1, "skep_put_declined_total|" + skep.Full.Error(): 0,
		"skep_restore_misses_total|" + skep.Damaged.Error(): 0,
		"skep_put_blocks_total|committed":                   11, "skep_restored_bytes_total|device": 13, "skep_catalog_disk_bytes|free": 2,
		"skep_namespace_lookup_keys_total|n|hit|t": 4, "skep_namespace_lookup_keys_total|n|miss|t": 1,
		"skep_namespace_restored_bytes_total|n|t|dram": 7, "skep_namespace_restore_misses_total|n|" + skep.Evicted.Error() + "|t": 1,
	} {
		require.Contains(t, got, key)
		require.Equal(t, want, got[key], key)
	}
	require.NotContains(t, got, "skep_namespace_restored_bytes_total|n|t|device")
}

// collected is a collector of one metric under labels, each worth 1.
type collected struct {
	d      *prometheus.Desc
	labels [][]string
}

func (collected) Describe(chan<- *prometheus.Desc) {}

func (c collected) Collect(out chan<- prometheus.Metric) {
	t := &tally{out: out, values: map[tallied]float64{}}
	for _, l := range c.labels {
		t.count(c.d, 1, l...)
	}
	t.send()
}

// Names that are not UTF-8 (older stores have them, and paths of devices) come out as what can be
// shown of them, and all other metrics too. Where that makes two the same they are one.
func TestMetricsOfNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collected{descSpaceKeys, [][]string{{"a\xff", "n", "hit"}, {"a\xfe", "n", "hit"}, {"a", "", "hit"}, {"", "a", "hit"}, {"a", "n", "hit"}}})
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		key := ""
		for _, l := range m.GetLabel() {
			key += l.GetValue() + "|"
		}
		got[key] = m.GetCounter().GetValue()
	}
	require.Equal(t, map[string]float64{"n|hit|a\uFFFD|": 2, "|hit|a|": 1, "a|hit||": 1, "n|hit|a|": 1}, got)
}
