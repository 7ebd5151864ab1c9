package observe

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
)

// Source is what a Collector asks. Its methods may be called at any time.
type Source interface {
	// Stats fails once the store is closed.
	Stats(ctx context.Context) (skep.Stats, error)
	// EachSpace calls f for every namespace.
	EachSpace(f func(tenant, name string, c *Spaces))
	// CatalogDisk is what was found when the catalog's file system was looked at last; false: it was not.
	CatalogDisk() (Disk, bool)
}

// Disk is a file system, in bytes.
type Disk struct{ Size, Free, Reserve uint64 }

// Collector shows a Source's Stats to Prometheus, once it has one. It keeps no numbers of its own, so the two cannot
// disagree.
type Collector struct{ source atomic.Pointer[Source] }

// Show has the collector show a source.
func (m *Collector) Show(s Source) { m.source.Store(&s) }

// described are all metrics of a store.
var described []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("skep_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	descInfo     = desc("info", "1, labelled with the back end of the devices and why not another.", "backend", "reason", "simulated", "state")
	descBlocks   = desc("blocks", "Blocks stored.")
	descBytes    = desc("block_bytes", "Payload of stored blocks, one copy each.")
	descGroups   = desc("groups", "Stripe groups by state.", "state")
	descLookups  = desc("lookups_total", "Lookups.")
	descKeys     = desc("lookup_keys_total", "Keys asked for by lookups, by result.", "result")
	descPuts     = desc("put_blocks_total", "Blocks put, by outcome.", "outcome")
	descDeclined = desc("put_declined_total", "Blocks declined, by reason.", "reason")
	descPutBytes = desc("put_bytes_total", "Payload committed.")
	descRestored = desc("restored_bytes_total", "Bytes restored, by tier.", "tier")
	descMisses   = desc("restore_misses_total", "Chunks that were a miss, by reason.", "reason")
	descJoined   = desc("joined_bytes_total", "Bytes that another restore's read brought.")
	descKept     = desc("kept_bytes_total", "Bytes that one restore read and that were put into memory because others under way wanted them.")
	descOverload = desc("overloaded_total", "Calls of the store refused because too much was under way.")
	descCapacity = desc("capacity_bytes", "Devices' bytes: their cap, what is allotted, room for payload.", "what")
	descTenant   = desc("tenant_bytes", "Payload a tenant holds, one copy each, of the 64 that hold most; and its share, beyond which its blocks go first.", "tenant", "what")
	descCopied   = desc("copied_bytes_total", "Bytes that took a copy for want of alignment.")
	descBroken   = desc("broken_promises_total", "Leased blocks that could not be restored.")
	descEvicted  = desc("evicted_blocks_total", "Blocks dropped to make room.")
	descUnread   = desc("evicted_unread_blocks_total", "Blocks dropped to make room that nobody had asked for since they were put.")
	descMoved    = desc("moved_bytes_total", "Payload written again by cleaning.")
	descDamaged  = desc("damaged_total", "Blocks whose bytes did not match.")
	descLeases   = desc("leases", "Leases held.")
	descLeased   = desc("leased_bytes", "Bytes under lease.")
	descDevBytes = desc("device_bytes_total", "Bytes moved by a device, by direction.", "device", "direction")
	descDevOps   = desc("device_ops_total", "Operations of a device, by kind.", "device", "kind")
	descDevErr   = desc("device_errors_total", "Operations of a device that failed.", "device")
	descDevFound = desc("device_left_by_kernel_total", "Operations of a device that the kernel left.", "device", "how")
	descDevWrong = desc("device_wrong_reads_total", "Reads of a device that brought other bytes than were written.", "device")
	descDevBusy  = desc("device_in_flight", "Operations under way.", "device")
	descDevLat   = desc("device_read_latency_seconds", "Moving average of read latency.", "device")
	descDevWrite = desc("device_write_latency_seconds", "Moving average of write latency.", "device")
	descDevState = desc("device_state", "1, labelled with how a device stands: ok, slow, fenced, dead.", "device", "state")
	descDevSize  = desc("device_size_bytes", "Size of a device.", "device")
	descDevWear  = desc("device_wear_ratio", "Share of a drive's promised life that is used, where it says so.", "device")
	descAdmitted = desc("admitted_blocks_total", "Cache blocks admitted to the drives.")
	descRefused  = desc("refused_blocks_total", "Cache blocks dropped from DRAM unwritten, or declined, by reason.", "reason")
	descLost     = desc("refused_hits_total", "Blocks put again after they were refused: hits that refusing cost.")
	descBudget   = desc("write_budget_left_bytes", "Bytes that may be written now under the write budget; below 0: owed.")
	descWaiting  = desc("waiting_bytes", "Blocks in DRAM that are not decided on.")
	descCatalog  = desc("catalog_disk_bytes", "File system of the catalog: its size, what is free, and the reserve at which puts are declined.", "what")
	descMemory   = desc("memory_bytes", "Memory in use, by holder.", "holder")
	descMemCap   = desc("memory_cap_bytes", "Caps on memory, of holders that have one.", "holder")
	descWork     = desc("work_done_bytes", "How far background work under way is.", "work")
	descWorkAll  = desc("work_total_bytes", "How far it will go, where that is known.", "work")
	descAhead    = desc("prefetch_bytes_total", "Bytes read ahead for hints, and what became of them: read, used, wasted.", "what")
	descUnused   = desc("prefetch_unused_bytes", "Bytes read ahead, in memory and not used yet.")
	descHints    = desc("prefetch_hints_total", "Hints to read ahead that were dropped, or overtaken by their request.", "what")
	descHinted   = desc("prefetch_waiting_hints", "Hints to read ahead that are not followed yet.")
	descTwo      = desc("two_pointer_loads_total", "Loads declined because computing was expected to take less; of them judged since, and right.", "what")
	descWay      = desc("two_pointer_chains_total", "Chains asked for by tokens or by layers, as the store decides, by what it decided.", "way")
	descBoundary = desc("boundary_bytes_total", "Boundary activations of pipeline stages, by direction.", "direction")
	descReuse    = desc("reuse_hit_ratio", "Hit ratio an LRU of that size would have had lately, from a sample of the keys.", "size")
)

var (
	descSpaceKeys     = desc("namespace_lookup_keys_total", "Keys asked for by lookups, by namespace and result.", "tenant", "namespace", "result")
	descSpaceRestored = desc("namespace_restored_bytes_total", "Bytes restored, by namespace and tier.", "tenant", "namespace", "tier")
	descSpaceMisses   = desc("namespace_restore_misses_total", "Chunks that were a miss, by namespace and reason.", "tenant", "namespace", "reason")
)

// tally collects the values of metrics. Values of the same labels are added up: labels
// that differ only in bytes that are not UTF-8, which Prometheus cannot take, become the same.
type tally struct {
	out    chan<- prometheus.Metric
	values map[tallied]float64
	order  []tallied
}

type tallied struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels string // each ended by a byte of 0xff, which is never UTF-8
}

func (t *tally) add(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(strings.ToValidUTF8(l, "\uFFFD"))
		b.WriteByte(0xff)
	}
	k := tallied{d, kind, b.String()}
	if _, ok := t.values[k]; !ok {
		t.order = append(t.order, k)
	}
	t.values[k] += v
}

func (t *tally) gauge(d *prometheus.Desc, v float64, labels ...string) {
	t.add(d, prometheus.GaugeValue, v, labels)
}

func (t *tally) count(d *prometheus.Desc, v int64, labels ...string) {
	t.add(d, prometheus.CounterValue, float64(v), labels)
}

// send gives Prometheus all of it.
func (t *tally) send() {
	for _, k := range t.order {
		var labels []string
		if k.labels != "" {
			labels = strings.Split(strings.TrimSuffix(k.labels, "\xff"), "\xff")
		}
		t.out <- prometheus.MustNewConstMetric(k.desc, k.kind, t.values[k], labels...)
	}
}

// Describe implements prometheus.Collector. By it a registry refuses a second store, whose metrics would be the same,
// and lets go of one that is closed.
func (m *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range described {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Collector) Collect(out chan<- prometheus.Metric) {
	from := m.source.Load()
	if from == nil {
		return
	}
	source := *from
	st, err := source.Stats(context.Background())
	if err != nil {
		return // closed
	}
	t := &tally{out: out, values: map[tallied]float64{}}
	source.EachSpace(t.space)
	t.standing(&st)
	if disk, ok := source.CatalogDisk(); ok {
		t.gauge(descCatalog, float64(disk.Size), "size")
		t.gauge(descCatalog, float64(disk.Free), "free")
		t.gauge(descCatalog, float64(disk.Reserve), "reserve")
	}
	t.traffic(&st)
	t.ahead(&st)
	for i := range st.Devices {
		t.device(&st.Devices[i])
	}
	t.send()
}

// space shows a namespace's counts. What it has none of is left out.
func (t *tally) space(tenant, name string, c *Spaces) {
	count := func(d *prometheus.Desc, v int64, label string) {
		if v > 0 {
			t.count(d, v, tenant, name, label)
		}
	}
	keys, hits := c.Keys.Load(), c.Hits.Load()
	count(descSpaceKeys, hits, "hit")
	count(descSpaceKeys, keys-hits, "miss")
	for tier, v := range c.Tiers.Snapshot() {
		count(descSpaceRestored, v, tier)
	}
	for reason, v := range c.Missed.Snapshot() {
		count(descSpaceMisses, v, reason)
	}
}

// standing is how the store stands.
func (t *tally) standing(st *skep.Stats) {
	simulated := "no"
	if st.Simulated {
		simulated = "yes"
	}
	t.gauge(descInfo, 1, st.Backend, st.BackendReason, simulated, st.State)
	t.gauge(descBlocks, float64(st.Blocks))
	t.gauge(descBytes, float64(st.BlockBytes))
	t.gauge(descCapacity, float64(st.CapacityBytes), "cap")
	t.gauge(descCapacity, float64(st.DeviceBytes), "allotted")
	t.gauge(descCapacity, float64(st.RoomBytes), "room")
	t.gauge(descGroups, float64(st.Groups), "used")
	t.gauge(descGroups, float64(st.FreeGroups), "free")
	t.gauge(descLeases, float64(st.Leases))
	t.gauge(descLeased, float64(st.LeasedBytes))
	for _, x := range st.Tenants {
		t.gauge(descTenant, float64(x.Bytes), x.Name, "used")
		if x.ShareBytes > 0 {
			t.gauge(descTenant, float64(x.ShareBytes), x.Name, "share")
		}
	}
	for _, x := range st.Work {
		t.gauge(descWork, float64(x.Done), x.Name)
		if x.Total > 0 {
			t.gauge(descWorkAll, float64(x.Total), x.Name)
		}
	}
	for _, x := range st.Memory {
		t.gauge(descMemory, float64(x.Used), x.Name)
		if x.Cap > 0 {
			t.gauge(descMemCap, float64(x.Cap), x.Name)
		}
	}
	if st.Reuse.References > 0 {
		t.gauge(descReuse, st.Reuse.DRAM, "dram")
		t.gauge(descReuse, st.Reuse.TwiceDRAM, "twice dram")
		t.gauge(descReuse, st.Reuse.Devices, "devices")
		t.gauge(descReuse, st.Reuse.TwiceDevices, "twice devices")
	}
}

// The reasons that an operator waits for. They are shown from the start, as zeros: a counter that appears with its first
// one has no rate, and an alert on it does not see that one.
var (
	declines = []skep.Kind{skep.Full, skep.ReadOnly, skep.Quota, skep.Admission, skep.NoMemory, skep.DeviceFailed}
	misses   = []skep.Kind{skep.NotFound, skep.Evicted, skep.Damaged, skep.DeviceFailed, skep.NoMemory, skep.Deadline}
)

// reasons is counts by reason, with those of known that are none yet.
func (t *tally) reasons(d *prometheus.Desc, counts map[string]int64, known []skep.Kind) {
	for reason, n := range counts {
		t.count(d, n, reason)
	}
	for _, k := range known {
		if _, there := counts[k.Error()]; !there {
			t.count(d, 0, k.Error())
		}
	}
}

// traffic is what was asked for, and what came of it.
func (t *tally) traffic(st *skep.Stats) {
	t.count(descLookups, st.Lookups)
	t.count(descKeys, st.LookupHits, "hit")
	t.count(descKeys, st.LookupKeys-st.LookupHits, "miss")
	t.count(descPuts, st.PutBlocks, skep.Committed.String())
	t.count(descPuts, st.PutExists, skep.Exists.String())
	t.count(descPutBytes, st.PutBytes)
	t.reasons(descDeclined, st.PutDeclined, declines)
	for tier, n := range st.RestoreTiers {
		t.count(descRestored, n, tier)
	}
	t.reasons(descMisses, st.RestoreMisses, misses)
	t.count(descJoined, st.JoinedBytes)
	t.count(descKept, st.KeptBytes)
	t.count(descCopied, st.CopiedBytes)
	t.count(descBroken, st.BrokenPromises)
	t.count(descOverload, st.Overloaded)
	t.count(descEvicted, st.Evicted)
	t.count(descUnread, st.EvictedUnread)
	t.count(descMoved, st.MovedBytes)
	t.count(descDamaged, st.Damaged)
	t.count(descAdmitted, st.Admission.AdmittedBlocks)
	for reason, n := range st.Admission.Refused {
		t.count(descRefused, n, reason)
	}
	t.count(descLost, st.Admission.RefusedHits)
	t.gauge(descBudget, float64(st.Admission.BudgetLeft))
	t.gauge(descWaiting, float64(st.Admission.WaitingBytes))
}

// ahead is what was read ahead, and what was computed instead of read.
func (t *tally) ahead(st *skep.Stats) {
	p, two := &st.Prefetch, &st.TwoPointers
	t.count(descAhead, p.ReadBytes, "read")
	t.count(descAhead, p.UsedBytes, "used")
	t.count(descAhead, p.WastedBytes, "wasted")
	t.gauge(descUnused, float64(p.UnusedBytes))
	t.count(descHints, p.Dropped, "dropped")
	t.count(descHints, p.Promoted, "promoted")
	t.gauge(descHinted, float64(p.Waiting))
	t.count(descTwo, two.Declined, "declined")
	t.count(descTwo, two.Judged, "judged")
	t.count(descTwo, two.Right, "right")
	t.count(descWay, two.ByTokens, "tokens")
	t.count(descWay, two.ByLayers, "layers")
	t.count(descBoundary, two.BoundaryPut, "put")
	t.count(descBoundary, two.BoundaryBytes, "restored")
}

// device is one device's share.
func (t *tally) device(d *skep.DeviceStats) {
	t.count(descDevBytes, d.BytesRead, d.Path, "read")
	t.count(descDevBytes, d.BytesWritten, d.Path, "write")
	t.count(descDevOps, d.Reads, d.Path, "read")
	t.count(descDevOps, d.Writes, d.Path, "write")
	t.count(descDevOps, d.Flushes, d.Path, "flush")
	t.count(descDevErr, d.Errors, d.Path)
	t.count(descDevWrong, d.WrongReads, d.Path)
	t.count(descDevFound, d.Unannounced, d.Path, "unannounced")
	t.count(descDevFound, d.Reissued, d.Path, "reissued")
	t.gauge(descDevBusy, float64(d.InFlight), d.Path)
	t.gauge(descDevLat, d.ReadLatencyUs/1e6, d.Path)
	t.gauge(descDevWrite, d.WriteLatencyUs/1e6, d.Path)
	state, _, _ := strings.Cut(d.State, ": ") // why is for people
	t.gauge(descDevState, 1, d.Path, state)
	t.gauge(descDevSize, float64(d.Size), d.Path)
	if d.Wear.Known {
		t.gauge(descDevWear, d.Wear.PercentUsed/100, d.Path)
	}
}
