package store

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalogdir"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/opening"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/memory"
)

// Options of Open. The zero value with Dir set is a working store on four file
// devices that grow with what is put.
type Options struct {
	// Dir holds LOCK, catalog/ and, unless Devices says otherwise, device-0,
	// device-1, … It, and every other path here, is of the working directory at the open: a
	// process may change that afterwards.
	Dir string

	// CatalogDir is the directory of the catalog; by default where Dir remembers that it is, or
	// Dir/catalog. Where none is there and the devices hold a store, one is made from them.
	CatalogDir string
	// MustExist refuses to make a store where there is none, with NotFound.
	MustExist bool
	// NoRebuild refuses to open a store whose catalog is lost or damaged, with Missing or
	// Damaged, where by default it is rebuilt from the devices.
	NoRebuild bool
	// ScrubRate has everything on the devices read and verified in the background, again
	// and again, at so many bytes a second; it yields to restores. 0: never, Scrub does it
	// when it is called.
	ScrubRate int64

	// Devices are paths of files or block devices, in order. Empty: the devices the
	// store was made with, or Dir/device-0 … for a new one.
	Devices []string
	// DeviceCount is how many file devices a new store gets when Devices is empty; 4
	// by default.
	DeviceCount int

	// CapacityBytes is the cap on the size of all devices together, the only cap
	// there is, of a new store. 0: as large as the file systems allow, less ReserveBytes each; what that
	// comes to is reckoned at the open and again every few seconds, for what is evicted depends on it.
	// A store remembers its cap: for one that is there 0 is the one it has, and another is refused. A device that is
	// added (AddDevice) has its size beyond the cap, too, which stays as it is.
	CapacityBytes int64
	// ChangeCapacity makes CapacityBytes the cap of a store that is there, 0 for none. A larger one
	// lets its devices grow; a smaller one does not shrink them.
	ChangeCapacity bool
	// ReserveBytes is what an uncapped store leaves free in a file system; 1 GiB by
	// default.
	ReserveBytes int64
	// BlockBytes is the typical size of a block, from which a new store derives its
	// segment size; 2 MiB by default.
	BlockBytes int64
	// SegmentBytes overrides that derivation; a multiple of 4 KiB.
	SegmentBytes int64
	// LogicalBlocks caps the number of blocks for the policies lru and s3fifo, which
	// need one; 0: none.
	LogicalBlocks int

	// Policy decides what is kept: "cost" (default), "lru" or "s3fifo".
	Policy string

	// Admission decides which blocks of Cache namespaces are written to drives: "all"
	// (default), "budget" (the default with a WriteBudget) or "second-touch".
	//
	// With "budget" the DRAM tier is the filter. A chained block is accepted into it
	// (the outcome is Accepted, whatever Ack was asked for), and goes to the drives once
	// it was used there, or when it must leave and the budget has something to spare;
	// else it is dropped, with an event. Until then a crash loses it, and Flush and Close
	// decide on everything that waits. "second-touch" declines what is put for the first
	// time; it is there to compare with.
	Admission string
	// WriteBudget is how many bytes a day each device may write, on average over a
	// quarter of an hour: what users put, logs and cleaning. Durable puts and cleaning are
	// not refused for it, but counted. 0: no budget.
	WriteBudget int64
	// AdmissionGhosts is how many refused keys are remembered, 8 bytes each, to count
	// what refusing them cost; 262,144.
	AdmissionGhosts int

	// RestorePolicy schedules chains that say what computing them costs: "skep", or one it is
	// compared with (package layout/twopointer). FirstCome says that the engine computes
	// requests in order of arrival, not all in turn.
	RestorePolicy string
	FirstCome     bool

	// The defaults of the budgets below are less where the process's control group has little memory.

	// CacheBytes is the DRAM tier's budget; 256 MiB by default, negative for none.
	CacheBytes int64
	// PrefetchBytes is how much of the DRAM tier may hold what hints said is needed soon, was read
	// ahead and is not used yet; a quarter of CacheBytes by default, negative for none.
	PrefetchBytes int64
	// IOBytes is the budget of I/O buffers; 256 MiB by default.
	IOBytes int64
	// CatalogCacheBytes is Pebble's block cache; 64 MiB by default.
	CatalogCacheBytes int64

	// MemoryBytes caps all of that together, with the index, calls under way and all else
	// the memory table lists (Stats.Memory); the index may take what is left. 0: no cap
	// but each one's own.
	MemoryBytes int64
	// IndexBytes caps the index, 64 bytes a block, with lru 76 and s3fifo 156. An open is refused where devices of
	// CapacityBytes could hold more blocks of BlockBytes; where blocks are smaller than
	// that, cleaning makes room in the index too. 0: what MemoryBytes leaves, or no cap.
	IndexBytes int64
	// CallBytes bounds what puts and restores under way keep on the heap: 32 KiB each, 1 KiB a
	// block put and 320 bytes a block restored, with up to 1 MiB and a byte a chunk more by layers,
	// until all of it is delivered. Calls beyond it are refused at once, as Overloaded, and where several
	// tenants have namespaces those by which one would have more than three times what is free; 256 MiB.
	CallBytes int64
	// WriterBytes bounds what open block writers (Begin) hold; 1 GiB, or a sixteenth of
	// MemoryBytes.
	WriterBytes int64

	// LeasedBytes caps what one tenant may hold under lease; a quarter of
	// CapacityBytes by default; without a cap, of what the file systems have room for at the
	// open, at most 64 GiB.
	LeasedBytes int64
	// PinnedBytes caps what one tenant may pin; half of LeasedBytes by default.
	PinnedBytes int64
	// TenantNamespaces is how many namespaces one tenant may have; 4,096. What it has already
	// counts, and stays.
	TenantNamespaces int
	// TenantBytes are the tenants' shares: who holds more gives first when room is needed, and nothing is refused.
	TenantBytes map[string]int64

	// EncryptionKeys has the payload of these tenants encrypted on the devices and in the catalog, with each tenant's
	// first key; what was encrypted with another of its keys is read, too. The tenant "" stands for all that are not
	// named. Blocks whose key is not among them are misses, of kind Denied. Names, keys and sizes are not encrypted.
	// SetEncryptionKeys replaces them. A tenant with encrypted blocks and none of their keys is refused at the open, as
	// Denied, though all of them were evicted; ReadOnly is not. A new key goes above those that were used.
	EncryptionKeys map[string][]EncryptionKey
	// WithoutKeys opens a store though such a tenant lacks the key, to look after its drives. What is put for one that has
	// none at all is Denied.
	WithoutKeys bool

	// Device passes options to the devices.
	Device device.Options
	// ReadOnly opens for inspection, also while another process has the store open.
	ReadOnly bool

	// FlushBytes and FlushInterval bound what Cache blocks may lose to a crash of the
	// machine, and with it what an unclean open must verify: 256 MiB and 1 s. A crash of
	// the process costs a hundredth of that, 10 ms, and four times what it takes to sync the
	// catalog; nothing that was put before a Flush.
	FlushBytes    int64
	FlushInterval time.Duration
	// OpTimeout is how long one device operation may take before the blocks it
	// belongs to become misses; 30 s.
	OpTimeout time.Duration
	// SpaceTimeout is how long a put waits for cleaning to free a group before it is
	// declined as Full; 10 s.
	SpaceTimeout time.Duration
	// Degraded says whether to open without a device that is missing: "auto" (default), when
	// no Durable block is lost with it; "never"; "always". Its blocks with another copy are
	// read from there and copied again in the background, others are misses.
	// "always" gives them up for good where the catalog is lost or damaged, too, but with NoRebuild.
	Degraded string
	// BackgroundRate caps what is moved in the background, in bytes of payload a second:
	// copies made again, drives emptied and filled, compaction. 0: as fast as the drives
	// are idle; while restores are under way a quarter of the time.
	BackgroundRate int64
	// HealAfter is for how long a drive may be unreadable before the copies it held are made
	// again on the others; 15 s.
	HealAfter time.Duration
	// NoRebalance leaves blocks where they are when a device is added.
	NoRebalance bool
	// ReadInPlace has drives read straight into a restore's destination where there are
	// several copies too. By default such blocks are read into the store's memory and
	// copied, so that a drive that hangs can be read around: nothing can take the caller's
	// memory from a drive that has been given it.
	ReadInPlace bool
	// Workers check and copy what drives deliver; GOMAXPROCS by default.
	Workers int
	// EventBuffer is how many events slow readers may fall behind; 65,536.
	EventBuffer int

	// ReuseSamples is how many keys are followed to say what more drives or DRAM would gain
	// (Stats.Reuse), 100 bytes each; 8,192, negative for none.
	ReuseSamples int
	// Admin opens a Unix socket, Dir/admin.sock, through which skep top and other processes
	// of the same user see Stats and the end of the log.
	Admin bool

	Logger     *slog.Logger          // discarded when nil
	Registerer prometheus.Registerer // none when nil; of one store each, unless prometheus.WrapRegistererWith tells them apart
	// Clock is what leases, pins, times to live and deadlines go by: skep.Steady when nil, and
	// it must never go back. Wall is for people and for what outlives the process: Clock where
	// only that is given, time.Now when neither is.
	Clock, Wall func() time.Time

	// OpenDevice and CatalogFS replace the file systems, for tests.
	OpenDevice func(index int, path string, create bool, size int64) (device.Device, error)
	CatalogFS  vfs.FS

	leasedByRoom  bool               // LeasedBytes was not given, and there is no cap to derive it from
	countGiven    int                // DeviceCount as it was given; 0: it was not
	customDevices bool               // OpenDevice was given: paths mean nothing
	looking       bool               // drives are opened for reading, and locked
	closeTimeout  time.Duration      // tests make it short
	ballastAfter  time.Duration      // how long a store is open before it takes its ballast; 0: its default
	catalogScarce time.Duration      // for a descriptor or space for it; 0: its default. Tests make it short
	catalogWait   time.Duration      // for an answer of the catalog; 0: its default. Tests make it short
	refuseCommits func() error       // catalog.Options.Refuse
	removeList    func(string) error // os.Remove of the list of a making; tests have their own
	noStamp       bool               // devices are not told whose they are: a crash comes before
	rules         health.Rules
	taskEvery     time.Duration                                     // how often there may be something to move; 0: a second
	taskRetry     time.Duration                                     // a group that could not be moved is left alone for so long; 0: 30 seconds
	fileSystem    func(dir string) (id uint64, free int64, ok bool) // paths.FileSystem; tests have their own
}

// leastIOBytes is the smallest budget of I/O buffers.
const leastIOBytes = 16 << 20

// machineClock is the default of Options.Wall; tests set it.
var machineClock = time.Now

func (o *Options) ensureDefaults() { o.defaultsWithin(memory.Limit()) }

// defaultsWithin fills in what nobody said. limit is how much memory the process may take, or 0.
func (o *Options) defaultsWithin(limit int64) {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if o.DeviceCount == 0 {
		o.DeviceCount = 4
	}
	def(&o.ReserveBytes, 1<<30)
	def(&o.BlockBytes, 2<<20)
	if o.RestorePolicy == "" {
		o.RestorePolicy = "skep"
	}
	if o.Policy == "" {
		o.Policy = "cost"
	}
	if o.Admission == "" {
		o.Admission = admission.All
		if o.WriteBudget > 0 {
			o.Admission = admission.Budget
		}
	}
	if o.AdmissionGhosts == 0 {
		o.AdmissionGhosts = 1 << 18
	}
	def(&o.CacheBytes, memory.Within(256<<20, limit, 8))
	if o.Degraded == "" {
		o.Degraded = DegradedAuto
	}
	o.CacheBytes = memory.Pages(max(o.CacheBytes, 0))
	if o.PrefetchBytes == 0 {
		o.PrefetchBytes = o.CacheBytes / 4
	}
	def(&o.IOBytes, max(leastIOBytes, memory.Within(256<<20, limit, 4)))
	o.IOBytes = memory.Pages(o.IOBytes)
	def(&o.CatalogCacheBytes, memory.Within(64<<20, limit, 16))
	def(&o.CallBytes, memory.Within(256<<20, limit, 8))
	if o.WriterBytes == 0 {
		o.WriterBytes = memory.Within(1<<30, limit, 16)
		if o.MemoryBytes > 0 {
			o.WriterBytes = o.MemoryBytes / 16
		}
	}
	if o.LeasedBytes == 0 {
		o.LeasedBytes, o.leasedByRoom = 64<<30, true
		if o.CapacityBytes > 0 {
			o.LeasedBytes = o.CapacityBytes / 4
		}
	}
	def(&o.PinnedBytes, o.LeasedBytes/2)
	def(&o.FlushBytes, 256<<20)
	if o.TenantNamespaces == 0 {
		o.TenantNamespaces = 4096
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = time.Second
	}
	if o.OpTimeout == 0 {
		o.OpTimeout = 30 * time.Second
	}
	if o.SpaceTimeout == 0 {
		o.SpaceTimeout = 10 * time.Second
	}
	if o.rules == (health.Rules{}) {
		o.rules = health.DefaultRules
	}
	o.taskEvery = cmp.Or(o.taskEvery, time.Second)
	o.taskRetry = cmp.Or(o.taskRetry, 30*time.Second)
	if o.HealAfter > 0 {
		o.rules.LostAfter = o.HealAfter
	}
	if o.closeTimeout == 0 {
		o.closeTimeout = defaultCloseTimeout
	}
	if o.EventBuffer == 0 {
		o.EventBuffer = 1 << 16
	}
	if o.ReuseSamples == 0 {
		o.ReuseSamples = 8192
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Wall == nil {
		if o.Wall = o.Clock; o.Wall == nil {
			o.Wall = machineClock
		}
	}
	if o.Clock == nil {
		o.Clock = skep.Steady
	}
	if o.CatalogFS == nil {
		o.CatalogFS = vfs.Default
	}
	if o.fileSystem == nil {
		o.fileSystem = paths.FileSystem
	}
	if o.OpenDevice == nil {
		o.OpenDevice = o.openFile
	} else {
		o.customDevices = true
	}
}

func (o *Options) openFile(_ int, path string, create bool, size int64) (device.Device, error) {
	if create {
		return device.Create(path, size, o.Device)
	}
	opt := o.Device
	opt.ReadOnly = o.ReadOnly || o.looking
	opt.NoLock = o.ReadOnly
	return device.Open(path, opt)
}

// prepare fills in what is not given, and refuses what cannot be.
func (o *Options) prepare() error {
	o.countGiven = o.DeviceCount
	o.ensureDefaults()
	if err := o.settlePaths(); err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return err
	}
	return catalogdir.Find(o.CatalogFS, o.Dir, &o.CatalogDir)
}

// settlePaths makes paths absolute. What is not a path of the file system, as tests have it, stays as it is.
func (o *Options) settlePaths() error {
	o.Devices = slices.Clone(o.Devices)
	paths := []*string{&o.Dir}
	if o.CatalogFS == vfs.Default {
		paths = append(paths, &o.CatalogDir)
	}
	if !o.customDevices {
		for i := range o.Devices {
			paths = append(paths, &o.Devices[i])
		}
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return &skep.Error{Op: "open store", Kind: skep.Invalid, Field: "path", Value: *p, Limit: "absolute where the working directory is not known", Err: err}
		}
		*p = abs
	}
	return nil
}

func (o *Options) validate() error {
	const op = "open store"
	switch {
	case o.Dir == "":
		return skep.Invalidf(op, "dir", "empty", "a directory")
	case len(o.Devices) > opening.MaxDevices:
		return skep.Invalidf(op, "devices", len(o.Devices), fmt.Sprintf("1 to %d", opening.MaxDevices))
	case o.TenantNamespaces < 1 || o.TenantNamespaces > namespaces.MaxNamespaces:
		return skep.Invalidf(op, "tenant namespaces", o.TenantNamespaces, fmt.Sprintf("1 to %d", namespaces.MaxNamespaces))
	case o.DeviceCount < 1 || o.DeviceCount > opening.MaxDevices:
		return skep.Invalidf(op, "device count", o.DeviceCount, fmt.Sprintf("1 to %d", opening.MaxDevices))
	case o.CapacityBytes < 0:
		return skep.Invalidf(op, "capacity bytes", o.CapacityBytes, "0 or more")
	case o.BlockBytes < 1 || o.BlockBytes > skep.MaxPartBytes:
		return skep.Invalidf(op, "block bytes", o.BlockBytes, fmt.Sprintf("1 to %d", int64(skep.MaxPartBytes)))
	case o.SegmentBytes < 0 || o.SegmentBytes%layout.PageSize != 0 || o.SegmentBytes > maxSegmentBytes:
		return skep.Invalidf(op, "segment bytes", o.SegmentBytes, fmt.Sprintf("a multiple of %d up to %d", layout.PageSize, int64(maxSegmentBytes)))
	case o.Policy != "cost" && o.Policy != "lru" && o.Policy != "s3fifo":
		return skep.Invalidf(op, "policy", o.Policy, "cost, lru or s3fifo")
	case o.Admission != admission.All && o.Admission != admission.Budget && o.Admission != admission.SecondTouch:
		return skep.Invalidf(op, "admission", o.Admission, "all, budget or second-touch")
	case o.Admission == admission.Budget && o.CacheBytes == 0:
		return skep.Invalidf(op, "cache bytes with admission budget", o.CacheBytes, "more than 0: blocks wait in the DRAM tier")
	case o.WriteBudget > 0 && o.Admission != admission.Budget:
		return skep.Invalidf(op, "write budget with admission "+o.Admission, o.WriteBudget, "0; a budget needs admission budget")
	case o.Degraded != DegradedAuto && o.Degraded != DegradedNever && o.Degraded != DegradedAlways:
		return skep.Invalidf(op, "degraded", o.Degraded, "auto, never or always")
	case o.IOBytes < leastIOBytes || o.IOBytes > memory.MaxBytes:
		return skep.Invalidf(op, "io bytes", o.IOBytes, fmt.Sprintf("%d to %d", leastIOBytes, memory.MaxBytes))
	case o.CacheBytes > memory.MaxBytes-o.IOBytes:
		return skep.Invalidf(op, "cache bytes", o.CacheBytes, fmt.Sprintf("at most %d, with io bytes", memory.MaxBytes))
	case o.HealAfter < 0:
		return skep.Invalidf(op, "heal after", o.HealAfter, "0 or more")
	case o.BackgroundRate < 0:
		return skep.Invalidf(op, "background rate", o.BackgroundRate, "0 or more")
	case o.LogicalBlocks < 0:
		return skep.Invalidf(op, "logical blocks", o.LogicalBlocks, "0 or more")
	case o.Workers < 0:
		return skep.Invalidf(op, "workers", o.Workers, "0 or more")
	case o.EventBuffer < 1:
		return skep.Invalidf(op, "event buffer", o.EventBuffer, "at least 1")
	}
	for _, f := range []struct {
		field string
		bytes int64
	}{{"reserve bytes", o.ReserveBytes}, {"scrub rate", o.ScrubRate}, {"catalog cache bytes", o.CatalogCacheBytes}, {"leased bytes", o.LeasedBytes},
		{"pinned bytes", o.PinnedBytes}, {"flush bytes", o.FlushBytes}, {"write budget", o.WriteBudget}, {"memory bytes", o.MemoryBytes},
		{"index bytes", o.IndexBytes}, {"call bytes", o.CallBytes}, {"writer bytes", o.WriterBytes}} {
		if f.bytes < 0 {
			return skep.Invalidf(op, f.field, f.bytes, "0 or more")
		}
	}
	for _, f := range []struct {
		field string
		d     time.Duration
	}{{"flush interval", o.FlushInterval}, {"op timeout", o.OpTimeout}, {"space timeout", o.SpaceTimeout}} {
		if f.d < time.Millisecond {
			return skep.Invalidf(op, f.field, f.d, "at least 1ms")
		}
	}
	if err := checkTenantBytes(op, o.TenantBytes); err != nil {
		return err
	}
	if err := crypt.Check(o.EncryptionKeys); err != nil {
		return err
	}
	seen := map[string]string{}
	for _, d := range o.Devices {
		is := paths.Device(d)
		if as := seen[is]; as != "" {
			return skep.Invalidf(op, "devices", d+", the same as "+as, "each device once")
		}
		seen[is] = d
	}
	return nil
}

// maxSegmentBytes follows from the 20 bits a location has for its page.
const maxSegmentBytes = 1 << 20 * layout.PageSize
