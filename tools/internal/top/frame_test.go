package top

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func samples() (before, now Sample) {
	opened := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	before = Sample{At: opened.Add(time.Hour), Stats: skep.Stats{
		Backend: "iouring", Opened: opened, State: "ok", Blocks: 9000, BlockBytes: 9000 << 20, CapacityBytes: 16 << 30, DeviceBytes: 16 << 30,
		Groups: 150, FreeGroups: 3, Lookups: 1000, LookupKeys: 90_000, LookupHits: 40_000, PutBlocks: 9000, PutBytes: 9000 << 20,
		PutDeclined: map[string]int64{"full": 3}, RestoredBlocks: 4000, RestoredBytes: 4000 << 20, RestoreTiers: map[string]int64{"device": 3000 << 20, "dram": 1000 << 20},
		RestoreMisses: map[string]int64{"evicted": 7}, Evicted: 100, MovedBytes: 1 << 30, Leases: 4, LeasedBytes: 4 << 20,
		Devices: []skep.DeviceStats{{Path: "/dev/nvme1n1", State: "ok", BytesRead: 1 << 40, BytesWritten: 1 << 39, InFlight: 31, ReadLatencyUs: 210, WriteLatencyUs: 35,
			Wear: skep.WearStats{Known: true, PercentUsed: 4, DaysLeft: 2400}},
			{Index: 1, Path: "/mnt/a directory with a very long name/device-1", State: "slow: reads take 8 times as long as before", Errors: 2, InFlight: 128, ReadLatencyUs: 9100}},
		Admission: skep.AdmissionStats{Policy: "budget", BudgetPerDay: 1 << 40, BudgetLeft: -(5 << 20), WaitingBlocks: 600, WaitingBytes: 600 << 20, AdmittedBlocks: 2000, RefusedHits: 55,
			Refused: map[string]int64{"not used": 4000, "partial tail": 300}},
		Reuse:   skep.ReuseStats{References: 90_000, SampleRate: .04, DRAM: .11, TwiceDRAM: .21, Devices: .31, TwiceDevices: .36, Curve: []skep.ReusePoint{{Blocks: 1}}},
		Tenants: []skep.TenantStats{{Name: "chat", Bytes: 8 << 30, ShareBytes: 16 << 30}, {Name: "batch", Bytes: 1 << 30}, {Name: "c"}, {Name: "d"}, {Name: "e"}, {Name: "f"}},
		Work:    []skep.WorkStats{{Name: "scrub", Unit: "bytes", Done: 3 << 30, Total: 16 << 30}, {Name: "rebalance", Unit: "groups", Done: 4}},
		Memory:  []skep.MemoryStats{{Name: "index", Used: 1 << 20}, {Name: "DRAM tier", Used: 256 << 20}},
	}}
	now = before
	now.At = before.At.Add(2 * time.Second)
	s := &now.Stats
	s.Lookups, s.LookupKeys, s.LookupHits = 1200, 100_000, 45_000
	s.PutBytes, s.PutBlocks = s.PutBytes+500<<20, s.PutBlocks+500
	s.RestoredBytes, s.RestoredBlocks = s.RestoredBytes+4<<30, s.RestoredBlocks+4096
	s.RestoreTiers = map[string]int64{"device": 6000 << 20, "dram": 2096 << 20}
	s.RestoreMisses = map[string]int64{"evicted": 9, "damaged": 1}
	s.Devices = append([]skep.DeviceStats(nil), s.Devices...)
	s.Devices[0].BytesRead += 6 << 30
	s.Devices[0].BytesWritten += 1 << 30
	return before, now
}

// The frame is what testdata says, and no line of it is wider than the terminal.
func TestFrame(t *testing.T) {
	t.Parallel()
	before, now := samples()
	lines := Frame(before, now, "/var/lib/skep", 80)
	for _, l := range lines {
		require.LessOrEqual(t, utf8.RuneCountInString(l), 80, l)
	}
	got := strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", "frame.txt")
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test -rewrite writes it anew")

	wide := Frame(before, now, "/var/lib/skep", 200)
	require.Greater(t, utf8.RuneCountInString(wide[12]), 80, "a wide terminal shows more")
}

// A store that has done nothing has a frame too, and so has one that just began.
func TestFrameOfAnEmptyStore(t *testing.T) {
	t.Parallel()
	for _, l := range Frame(Sample{}, Sample{At: time.Now(), Stats: skep.Stats{Opened: time.Now()}}, "d", 10) {
		require.LessOrEqual(t, utf8.RuneCountInString(l), MinWidth)
		require.NotContains(t, l, "NaN")
		require.NotContains(t, l, "Inf")
	}
}

// Counters that went back, as after a restart, are no negative rates.
func TestFrameAfterARestart(t *testing.T) {
	t.Parallel()
	before, now := samples()
	before.Stats.Admission = skep.AdmissionStats{}
	for _, l := range Frame(now, Sample{At: now.At.Add(time.Second), Stats: before.Stats}, "d", 80) {
		require.NotContains(t, l, " -", "but for the budget, which may be owed")
	}
}

// A frame is drawn over the last: nothing is cleared before it is drawn anew.
func TestDraw(t *testing.T) {
	t.Parallel()
	b := string(Draw([]string{"one", strings.Repeat("x", 100), "three", "four"}, 20, 4))
	require.True(t, strings.HasPrefix(b, home))
	require.NotContains(t, b, "\x1b[2J")
	require.Contains(t, b, "one"+eraseLine+"\r\n"+strings.Repeat("x", 20)+eraseLine)
	require.NotContains(t, b, "four", "no more lines than rows")
	require.True(t, strings.HasSuffix(b, eraseBelow+"q quits"))
}

func TestOnce(t *testing.T) {
	t.Parallel()
	n := 0
	o := Options{Interval: 20 * time.Millisecond, Ask: func(context.Context) (skep.Stats, error) {
		n++
		return skep.Stats{Blocks: int64(n)}, nil
	}}
	before, now, err := Once(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 1, before.Stats.Blocks)
	require.EqualValues(t, 2, now.Stats.Blocks)
	require.GreaterOrEqual(t, now.At.Sub(before.At), 20*time.Millisecond)
}

func TestRates(t *testing.T) {
	t.Parallel()
	r := RatesOf(samples())
	require.Equal(t, 100.0, r.Lookups)
	require.Equal(t, .5, r.HitRatio)
	require.Equal(t, 1.5, r.Misses)
	require.Equal(t, DeviceRates{0, 3 << 30, 512 << 20}, r.Devices[0])
}

// Drives have one name where each is mounted: what is shown tells them apart.
func TestDrivesAreToldApart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ paths, names []string }{
		{nil, []string{}},
		{[]string{"/mnt/nvme0/skep"}, []string{"skep"}},
		{[]string{"/dev/nvme0n1", "/dev/nvme1n1"}, []string{"nvme0n1", "nvme1n1"}},
		{[]string{"/mnt/nvme0/skep", "/mnt/nvme1/skep"}, []string{"nvme0", "nvme1"}},
		{[]string{"/mnt/nvme0/kv/skep", "/mnt/nvme1/kv/skep", "/mnt/nvme1/kv/skep-new"}, []string{"nvme0/kv/skep", "nvme1/kv/skep", "nvme1/kv/skep-new"}},
		{[]string{"/skep", "/mnt/skep"}, []string{"/skep", "/mnt/skep"}},
		{[]string{"a/skep", "a/skep"}, []string{"a", "a"}},
	} {
		require.Equal(t, tt.names, apart(tt.paths), tt.paths)
	}
}

// What is wrong may have several lines, and a tenant any name.
func TestNothingOfAFrameMovesTheCursor(t *testing.T) {
	t.Parallel()
	f := Frame(Sample{}, Sample{Stats: skep.Stats{Tenants: []skep.TenantStats{{Name: "a\x1b[2J\nb"}}}}, "d", 80)
	require.NotContains(t, strings.Join(f, ""), "\n")
	drawn := string(Draw([]string{"NOT ANSWERING: a\n\x1b[2Jb"}, 80, 24))
	require.Contains(t, drawn, "a··[2Jb")
}
