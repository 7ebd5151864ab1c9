package store

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// Options of Open. The zero value with Dir set is a working store on four file
// devices that grow with what is put.
type Options struct {
	// Dir holds LOCK, catalog/ and, unless Devices says otherwise, device-0,
	// device-1, …
	Dir string

	// Devices are paths of files or block devices, in order. Empty: the devices the
	// store was made with, or Dir/device-0 … for a new one.
	Devices []string
	// DeviceCount is how many file devices a new store gets when Devices is empty; 4
	// by default.
	DeviceCount int

	// CapacityBytes is the cap on the size of all devices together, the only cap
	// there is. 0: as large as the file systems allow, less ReserveBytes each.
	CapacityBytes int64
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

	// CacheBytes is the DRAM tier's budget; 256 MiB by default, negative for none.
	CacheBytes int64
	// IOBytes is the budget of I/O buffers; 256 MiB by default.
	IOBytes int64
	// CatalogCacheBytes is Pebble's block cache; 64 MiB by default.
	CatalogCacheBytes int64

	// LeasedBytes caps what one tenant may hold under lease; a quarter of
	// CapacityBytes by default, 64 GiB without a cap.
	LeasedBytes int64
	// PinnedBytes caps what one tenant may pin; half of LeasedBytes by default.
	PinnedBytes int64
	// TenantBytes are quotas on stored bytes by tenant; over-quota tenants give first.
	TenantBytes map[string]int64

	// Device passes options to the devices.
	Device device.Options
	// ReadOnly opens for inspection, also while another process has the store open.
	ReadOnly bool

	// FlushBytes and FlushInterval bound what Cache blocks may lose to a crash of the
	// machine, and with it what an unclean open must verify: 256 MiB and 1 s.
	FlushBytes    int64
	FlushInterval time.Duration
	// OpTimeout is how long one device operation may take before the blocks it
	// belongs to become misses; 30 s.
	OpTimeout time.Duration
	// SpaceTimeout is how long a put waits for cleaning to free a group before it is
	// declined as Full; 10 s.
	SpaceTimeout time.Duration
	// Workers check and copy what drives deliver; GOMAXPROCS by default.
	Workers int
	// EventBuffer is how many events slow readers may fall behind; 65,536.
	EventBuffer int

	Logger     *slog.Logger          // discarded when nil
	Registerer prometheus.Registerer // none when nil
	Clock      func() time.Time      // time.Now when nil

	// OpenDevice and CatalogFS replace the file systems, for tests.
	OpenDevice func(index int, path string, create bool, size int64) (device.Device, error)
	CatalogFS  vfs.FS

	closeTimeout time.Duration // tests make it short
}

func (o *Options) ensureDefaults() {
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
	if o.Policy == "" {
		o.Policy = "cost"
	}
	def(&o.CacheBytes, 256<<20)
	if o.CacheBytes < 0 {
		o.CacheBytes = 0
	}
	def(&o.IOBytes, 256<<20)
	def(&o.CatalogCacheBytes, 64<<20)
	if o.LeasedBytes == 0 {
		o.LeasedBytes = 64 << 30
		if o.CapacityBytes > 0 {
			o.LeasedBytes = o.CapacityBytes / 4
		}
	}
	def(&o.PinnedBytes, o.LeasedBytes/2)
	def(&o.FlushBytes, 256<<20)
	if o.FlushInterval == 0 {
		o.FlushInterval = time.Second
	}
	if o.OpTimeout == 0 {
		o.OpTimeout = 30 * time.Second
	}
	if o.SpaceTimeout == 0 {
		o.SpaceTimeout = 10 * time.Second
	}
	if o.closeTimeout == 0 {
		o.closeTimeout = defaultCloseTimeout
	}
	if o.EventBuffer == 0 {
		o.EventBuffer = 1 << 16
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.CatalogFS == nil {
		o.CatalogFS = vfs.Default
	}
	if o.OpenDevice == nil {
		o.OpenDevice = o.openFile
	}
}

func (o *Options) openFile(_ int, path string, create bool, size int64) (device.Device, error) {
	if create {
		return device.Create(path, size, o.Device)
	}
	opt := o.Device
	opt.ReadOnly = o.ReadOnly
	opt.NoLock = o.ReadOnly
	return device.Open(path, opt)
}

// maxDevices is how many devices one store may have; a group names its devices in a
// page and a location in eight bits.
const maxDevices = 64

func (o *Options) validate() error {
	const op = "open store"
	switch {
	case o.Dir == "":
		return skep.Invalidf(op, "dir", "empty", "a directory")
	case len(o.Devices) > maxDevices:
		return skep.Invalidf(op, "devices", len(o.Devices), fmt.Sprintf("1 to %d", maxDevices))
	case o.DeviceCount < 1 || o.DeviceCount > maxDevices:
		return skep.Invalidf(op, "device count", o.DeviceCount, fmt.Sprintf("1 to %d", maxDevices))
	case o.CapacityBytes < 0:
		return skep.Invalidf(op, "capacity bytes", o.CapacityBytes, "0 or more")
	case o.BlockBytes < 1 || o.BlockBytes > skep.MaxPartBytes:
		return skep.Invalidf(op, "block bytes", o.BlockBytes, fmt.Sprintf("1 to %d", int64(skep.MaxPartBytes)))
	case o.SegmentBytes < 0 || o.SegmentBytes%layout.PageSize != 0 || o.SegmentBytes > maxSegmentBytes:
		return skep.Invalidf(op, "segment bytes", o.SegmentBytes, fmt.Sprintf("a multiple of %d up to %d", layout.PageSize, int64(maxSegmentBytes)))
	case o.Policy != "cost" && o.Policy != "lru" && o.Policy != "s3fifo":
		return skep.Invalidf(op, "policy", o.Policy, "cost, lru or s3fifo")
	case o.IOBytes < 16<<20:
		return skep.Invalidf(op, "io bytes", o.IOBytes, fmt.Sprintf("at least %d", 16<<20))
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
	}{{"reserve bytes", o.ReserveBytes}, {"catalog cache bytes", o.CatalogCacheBytes}, {"leased bytes", o.LeasedBytes},
		{"pinned bytes", o.PinnedBytes}, {"flush bytes", o.FlushBytes}} {
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
	for name, n := range o.TenantBytes {
		if n < 0 {
			return &skep.Error{Op: op, Kind: skep.Invalid, Field: "tenant bytes", Value: n, Limit: "0 or more, for " + name}
		}
	}
	seen := map[string]bool{}
	for _, d := range o.Devices {
		if seen[filepath.Clean(d)] {
			return skep.Invalidf(op, "devices", d+" twice", "each device once")
		}
		seen[filepath.Clean(d)] = true
	}
	return nil
}

// maxSegmentBytes follows from the 20 bits a location has for its page.
const maxSegmentBytes = 1 << 20 * layout.PageSize
