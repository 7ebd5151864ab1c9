package top

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// Sample is a store at one moment.
type Sample struct {
	At    time.Time
	Stats skep.Stats
}

// Rates is what a store did in a second, between two samples.
type Rates struct {
	Lookups       float64       `json:"lookups"`        // calls of Lookup (1/s)
	Keys          float64       `json:"keys"`           // keys looked up (1/s)
	HitRatio      float64       `json:"hit_ratio"`      // share of them found
	PutBytes      float64       `json:"put_bytes"`      // committed (bytes/s)
	RestoredBytes float64       `json:"restored_bytes"` // delivered by restores (bytes/s)
	Misses        float64       `json:"misses"`         // chunks that restores did not deliver (1/s)
	Devices       []DeviceRates `json:"devices"`        // drives of the store
}

// DeviceRates is a device's share.
type DeviceRates struct {
	Index      int     `json:"index"`       // its number
	ReadBytes  float64 `json:"read_bytes"`  // read (bytes/s)
	WriteBytes float64 `json:"write_bytes"` // written (bytes/s)
}

// RatesOf is the rates between two samples.
func RatesOf(before, now Sample) Rates {
	f := frame{a: before.Stats, b: now.Stats, seconds: max(now.At.Sub(before.At).Seconds(), 1e-3)}
	a, b := &f.a, &f.b
	r := Rates{Lookups: f.rate(a.Lookups, b.Lookups), Keys: f.rate(a.LookupKeys, b.LookupKeys), PutBytes: f.rate(a.PutBytes, b.PutBytes),
		RestoredBytes: f.rate(a.RestoredBytes, b.RestoredBytes), Devices: []DeviceRates{}}
	if r.Keys > 0 {
		r.HitRatio = f.rate(a.LookupHits, b.LookupHits) / r.Keys
	}
	for reason, n := range b.RestoreMisses {
		r.Misses += f.rate(a.RestoreMisses[reason], n)
	}
	for i, d := range b.Devices {
		var o skep.DeviceStats
		if i < len(a.Devices) {
			o = a.Devices[i]
		}
		r.Devices = append(r.Devices, DeviceRates{d.Index, f.rate(o.BytesRead, d.BytesRead), f.rate(o.BytesWritten, d.BytesWritten)})
	}
	return r
}

// MinWidth is the least number of columns a frame is made for.
const MinWidth = 80

// Frame is what there is to see: the rates between two samples and how things stand at
// the second. Before may be the zero Sample: then rates are since the store was opened.
func Frame(before, now Sample, dir string, width int) []string {
	f := frame{width: max(width, MinWidth), a: before.Stats, b: now.Stats}
	from := before.At
	if from.IsZero() {
		from = now.Stats.Opened
		f.a = skep.Stats{}
	}
	f.seconds = max(now.At.Sub(from).Seconds(), 1e-3)
	f.head(dir, now.At)
	f.hits()
	f.devices()
	f.admission()
	f.reuse()
	f.work()
	f.tenants()
	f.memory()
	return f.lines
}

type frame struct {
	width   int
	seconds float64
	a, b    skep.Stats
	lines   []string
}

// add adds a line, cut where the frame ends.
func (f *frame) add(format string, args ...any) {
	s := strings.TrimRight(command.Printable(fmt.Sprintf(format, args...)), " ")
	if utf8.RuneCountInString(s) > f.width {
		r := []rune(s)
		s = string(r[:f.width-1]) + "…"
	}
	f.lines = append(f.lines, s)
}

func (f *frame) title(s string) {
	f.add("")
	f.add("%s", s)
}

// rate is the difference of two counts in a second.
func (f *frame) rate(a, b int64) float64 { return max(0, float64(b-a)) / f.seconds }

func (f *frame) head(dir string, now time.Time) {
	b := &f.b
	state := b.State
	if b.Simulated {
		state += ", SIMULATED"
	}
	f.add("skep %s  %s  up %s  %s", dir, state, now.Sub(b.Opened).Round(time.Second), cmp.Or(b.Backend+suffix(b.BackendReason), "?"))
	limit := "no cap"
	if b.CapacityBytes > 0 {
		limit = "cap " + size(b.CapacityBytes)
	}
	if b.RoomBytes > 0 {
		limit += ", room " + size(b.RoomBytes)
	}
	f.add("%d blocks, %s   devices %s, %s   groups %d, %d free", b.Blocks, size(b.BlockBytes), size(b.DeviceBytes), limit, b.Groups, b.FreeGroups)
}

func suffix(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func (f *frame) hits() {
	a, b := &f.a, &f.b
	f.title("PER SECOND")
	keys, hits := f.rate(a.LookupKeys, b.LookupKeys), f.rate(a.LookupHits, b.LookupHits)
	f.add("lookups   %9.1f   keys %9.0f   hit %s   since open %s", f.rate(a.Lookups, b.Lookups), keys, percent(hits, keys),
		percent(float64(b.LookupHits), float64(b.LookupKeys)))
	f.add("put       %9s   blocks %7.1f   declined %s", size(int64(f.rate(a.PutBytes, b.PutBytes))), f.rate(a.PutBlocks, b.PutBlocks), f.reasons(a.PutDeclined, b.PutDeclined))
	f.add("restored  %9s   blocks %7.1f   by tier %s", size(int64(f.rate(a.RestoredBytes, b.RestoredBytes))), f.rate(a.RestoredBlocks, b.RestoredBlocks), f.tiers())
	f.add("misses    %s", f.reasons(a.RestoreMisses, b.RestoreMisses))
	f.add("evicted   %9.1f   cleaning wrote %s   damaged %d   broken promises %d", f.rate(a.Evicted, b.Evicted),
		size(int64(f.rate(a.MovedBytes, b.MovedBytes))), b.Damaged, b.BrokenPromises)
}

// tiers is the share of restored bytes by tier, of lately or, when there are none, ever.
func (f *frame) tiers() string {
	of := func(a, b map[string]int64) (string, bool) {
		var sum float64
		for t, n := range b {
			sum += float64(n - a[t])
		}
		var parts []string
		for _, t := range slices.Sorted(maps.Keys(b)) {
			parts = append(parts, t+" "+percent(float64(b[t]-a[t]), sum))
		}
		return strings.Join(parts, ", "), sum > 0
	}
	if s, some := of(f.a.RestoreTiers, f.b.RestoreTiers); some {
		return s
	}
	if s, some := of(nil, f.b.RestoreTiers); some {
		return s + " since open"
	}
	return "–"
}

// reasons lists counts a second and since the store was opened, by reason.
func (f *frame) reasons(a, b map[string]int64) string {
	if len(b) == 0 {
		return "none"
	}
	keys := slices.SortedFunc(maps.Keys(b), func(x, y string) int { return cmp.Or(cmp.Compare(b[y], b[x]), cmp.Compare(x, y)) })
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%s %.1f (%d)", k, f.rate(a[k], b[k]), b[k]))
	}
	return strings.Join(parts, ", ")
}

func (f *frame) devices() {
	f.title("DEVICE            READ/S  WRITE/S DEPTH READ µs WRITE µs ERR  STATE")
	old := map[int]skep.DeviceStats{}
	for _, d := range f.a.Devices {
		old[d.Index] = d
	}
	paths := make([]string, len(f.b.Devices))
	for i, d := range f.b.Devices {
		paths[i] = d.Path
	}
	names := apart(paths)
	for i, d := range f.b.Devices {
		o := old[d.Index]
		f.add("%-14s %9s %8s %5d %7.0f %8.0f %3d  %s", tail(fmt.Sprintf("%d %s", d.Index, names[i]), 14), size(int64(f.rate(o.BytesRead, d.BytesRead))),
			size(int64(f.rate(o.BytesWritten, d.BytesWritten))), d.InFlight, d.ReadLatencyUs, d.WriteLatencyUs, d.Errors, d.State+wear(d.Wear))
	}
}

// apart gives for each path what tells it from the others: its last element where these differ, else what is left
// without the elements that all begin with, and those that all end with; the paths where that is nothing. The console has the same in app.js.
func apart(paths []string) []string {
	parts, least, bases := make([][]string, len(paths)), 0, map[string]bool{}
	for i, p := range paths {
		parts[i] = strings.Split(filepath.ToSlash(p), "/")
		bases[parts[i][len(parts[i])-1]] = true
		if least == 0 || len(parts[i]) < least {
			least = len(parts[i])
		}
	}
	shared := func(of func(p []string, n int) string) (n int) {
		for n < least-1 && !slices.ContainsFunc(parts, func(p []string) bool { return of(p, n) != of(parts[0], n) }) {
			n++
		}
		return n
	}
	behind := 0
	if len(bases) < len(paths) {
		behind = shared(func(p []string, n int) string { return p[len(p)-1-n] })
	}
	least -= behind
	before := shared(func(p []string, n int) string { return p[n] })
	out := make([]string, len(paths))
	for i, p := range parts {
		if len(bases) == len(paths) {
			before = len(p) - 1
		}
		if out[i] = strings.Join(p[before:len(p)-behind], "/"); out[i] == "" {
			return paths
		}
	}
	return out
}

func wear(w skep.WearStats) string {
	switch {
	case !w.Known:
		return ""
	case w.DaysLeft > 0:
		return fmt.Sprintf(", %.0f %% worn, %.0f days left", w.PercentUsed, w.DaysLeft)
	}
	return fmt.Sprintf(", %.0f %% worn", w.PercentUsed)
}

func (f *frame) admission() {
	a := &f.b.Admission
	if a.Policy == "" || a.Policy == "all" {
		return
	}
	budget := "no budget"
	if a.BudgetPerDay > 0 {
		budget = fmt.Sprintf("budget %s a day and device, %s left", size(a.BudgetPerDay), size(a.BudgetLeft))
	}
	f.title("ADMISSION  " + a.Policy + ", " + budget)
	f.add("waiting %d blocks, %s   admitted %d   hits refused %d", a.WaitingBlocks, size(a.WaitingBytes), a.AdmittedBlocks, a.RefusedHits)
	f.add("refused   %s", f.reasons(f.a.Admission.Refused, a.Refused))
}

func (f *frame) reuse() {
	r := &f.b.Reuse
	if r.References == 0 || len(r.Curve) == 0 {
		return
	}
	f.title(fmt.Sprintf("SIZES  hit ratio an LRU would have (%.2g of the keys followed)", r.SampleRate))
	f.add("devices %s, twice %s (%+.1f)    DRAM alone %s, twice %s (%+.1f)", percent(r.Devices, 1), percent(r.TwiceDevices, 1), 100*(r.TwiceDevices-r.Devices),
		percent(r.DRAM, 1), percent(r.TwiceDRAM, 1), 100*(r.TwiceDRAM-r.DRAM))
}

func (f *frame) work() {
	if len(f.b.Work) == 0 {
		return
	}
	f.title("IN THE BACKGROUND")
	for _, w := range f.b.Work {
		show := func(n int64) string { return fmt.Sprintf("%d %s", n, w.Unit) }
		if w.Unit == "bytes" {
			show = size
		}
		of := ""
		if w.Total > 0 {
			of = fmt.Sprintf(" of %s, %s", show(w.Total), percent(float64(w.Done), float64(w.Total)))
		}
		f.add("%-20s %s%s", w.Name, show(w.Done), of)
	}
}

// shown is how many tenants a frame lists.
const shown = 4

func (f *frame) tenants() {
	if len(f.b.Tenants) == 0 {
		return
	}
	f.title(fmt.Sprintf("TENANTS  leases %d, %s", f.b.Leases, size(f.b.LeasedBytes)))
	for i, t := range f.b.Tenants {
		if i == shown {
			f.add("and %d more", len(f.b.Tenants)-shown)
			break
		}
		share := "no share"
		if t.ShareBytes > 0 {
			share = fmt.Sprintf("of %s, %s", size(t.ShareBytes), percent(float64(t.Bytes), float64(t.ShareBytes)))
		}
		f.add("%-30s %10s %s", tail(t.Name, 30), size(t.Bytes), share)
	}
}

func (f *frame) memory() {
	var used, most int64
	for _, m := range f.b.Memory {
		used += m.Used
		most += m.Cap
	}
	f.title(fmt.Sprintf("MEMORY  %s in %d accounts (skep inspect memory lists them)", size(used), len(f.b.Memory)))
}

// tail is the end of s where it is longer than n columns.
func tail(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return "…" + string(r[len(r)-n+1:])
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*part/whole)
}

// size prints bytes with a decimal prefix, short.
func size(n int64) string {
	f, sign := float64(n), ""
	if f < 0 {
		f, sign = -f, "-"
	}
	unit := 0
	for f >= 1000 && unit < 6 {
		f /= 1000
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%s%.0f B", sign, f)
	}
	return fmt.Sprintf("%s%.1f %cB", sign, f, "kMGTPE"[unit-1])
}
