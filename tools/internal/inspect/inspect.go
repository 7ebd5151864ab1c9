package inspect

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/catalogdir"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// View is a store's catalog at one moment. Close it.
type View struct {
	dir string
	cat *catalog.Catalog
}

// Open takes a view of the store in dir: NotFound when there is none.
func Open(dir string, log *slog.Logger) (*View, error) {
	if dir == "" {
		return nil, skep.Invalidf("inspect", "--dir", "empty", "the directory of a store")
	}
	at, _, err := catalogdir.Of(dir)
	if err != nil {
		return nil, err
	}
	c, err := catalog.Inspect(at, catalog.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	return &View{dir, c}, nil
}

// Close ends the view.
func (v *View) Close() error { return v.cat.Close() }

// Store is the root of the catalog.
type Store struct {
	Dir        string `json:"dir"`         // as given
	ID         string `json:"store_id"`    // in every superblock
	Format     uint32 `json:"format"`      // store format
	Clean      bool   `json:"clean"`       // closed in order
	Epoch      uint64 `json:"epoch"`       // how often it was opened
	NextSeq    uint64 `json:"next_seq"`    // sequence numbers are given out below this
	FlushedSeq uint64 `json:"flushed_seq"` // everything below it is on the devices

	// what would move the bytes of its devices, by the first that can be opened; none when none can be
	Backend       string `json:"backend"`
	BackendReason string `json:"backend_reason"` // why not a better one
	Simulated     bool   `json:"simulated"`      // a device is a simulation
}

func (v *View) store(ctx context.Context) (Store, error) {
	root, err := v.cat.Store(ctx)
	if err != nil {
		return Store{}, err
	}
	rows, err := v.cat.Devices(ctx)
	if err != nil {
		return Store{}, err
	}
	s := Store{Dir: v.dir, ID: hex.EncodeToString(root.StoreID[:]), Format: catalog.FormatVersion, Clean: root.Clean, Epoch: root.Epoch,
		NextSeq: root.NextSeq, FlushedSeq: root.FlushedSeq, Backend: "none"}
	places, err := v.places(ctx, root)
	if err != nil {
		return Store{}, err
	}
	for _, r := range rows {
		if r.State == catalog.DeviceRemoved {
			continue
		}
		path, err := places.Find(r)
		var dev device.Device
		if err == nil {
			dev, err = device.Open(path, device.Options{ReadOnly: true, NoLock: true})
		}
		if err != nil {
			s.BackendReason = err.Error()
			continue
		}
		info := dev.Info()
		s.Backend, s.BackendReason, s.Simulated = info.Backend, info.Reason, info.Simulated
		return s, dev.Close()
	}
	return s, nil
}

// Device is one drive of the store.
type Device struct {
	Index         int    `json:"index"`           // its number
	ID            string `json:"id"`              // in its superblock
	Path          string `json:"path"`            // where it is looked for
	Serial        string `json:"serial"`          // of a block device
	State         string `json:"state"`           // in use, fenced or removed
	Present       bool   `json:"present"`         // it can be opened
	Problem       string `json:"problem"`         // what is wrong with it; empty when nothing is
	SizeBytes     int64  `json:"size_bytes"`      // its size (bytes)
	SegmentBytes  int64  `json:"segment_bytes"`   // of a segment (bytes)
	Segments      int    `json:"segments"`        // how many it has
	InUse         int    `json:"segments_in_use"` // of these, in a stripe group
	Backend       string `json:"backend"`         // what would move its bytes
	BackendReason string `json:"backend_reason"`  // why not a better one
	Simulated     bool   `json:"simulated"`       // its speed is a model's
	Raw           bool   `json:"raw"`             // a block device
	Direct        bool   `json:"direct"`          // O_DIRECT works
}

// Devices is the store and its drives.
type Devices struct {
	Store
	Devices []Device `json:"devices"` // drives of the store
}

// Devices lists the drives as the catalog knows them and as they are found.
func (v *View) Devices(ctx context.Context) (*Devices, error) {
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := v.cat.Devices(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := v.cat.Groups(ctx)
	if err != nil {
		return nil, err
	}
	inUse := map[uint16]int{}
	for _, g := range groups {
		for _, m := range g.Devices {
			inUse[m.Device]++
		}
	}
	state, err := v.cat.Store(ctx)
	if err != nil {
		return nil, err
	}
	places, err := v.places(ctx, state)
	if err != nil {
		return nil, err
	}
	out := &Devices{Store: root, Devices: []Device{}}
	for _, r := range rows {
		path, why := places.Find(r)
		d := Device{Index: int(r.Index), ID: hex.EncodeToString(r.ID[:]), Path: path, Serial: r.Serial, State: r.State.String(),
			SizeBytes: r.Size, SegmentBytes: r.SegmentBytes, Segments: int(r.Segments), InUse: inUse[r.Index]}
		switch {
		case r.State == catalog.DeviceRemoved:
			d.Path = r.Path // where it was
		case why != nil:
			d.Problem = why.Error()
		default:
			d.probe(ctx, r.ID)
		}
		out.Devices = append(out.Devices, d)
	}
	return out, nil
}

// places finds the drives as an open would: a copy's are not the original's.
func (v *View) places(ctx context.Context, root catalog.StoreState) (*store.Places, error) {
	owner, known, err := v.cat.Owner(ctx)
	return store.PlacesOf(v.dir, root.StoreID, owner, known), err
}

// Others gives the paths of the store's devices, where those that are named are others: not the same by what is written
// on them, one for one. Nothing where they are the same.
func (v *View) Others(ctx context.Context, named []string) (has []string, err error) {
	all, err := v.Devices(ctx)
	if err != nil {
		return nil, err
	}
	left := map[string]bool{}
	for _, path := range named {
		id := path // of what cannot be read
		if sb, _, err := superblock(ctx, path); err == nil {
			id = sb.Device.String()
		}
		left[id] = true
	}
	same := true
	for _, d := range all.Devices {
		if d.State == catalog.DeviceRemoved.String() {
			continue
		}
		has = append(has, d.Path)
		same = same && (left[d.ID] || left[d.Path])
		delete(left, d.ID)
		delete(left, d.Path)
	}
	if same && len(left) == 0 {
		return nil, nil
	}
	return has, nil
}

// superblock reads the one of the device at a path.
func superblock(ctx context.Context, path string) (*segment.Superblock, *device.Info, error) {
	dev, err := device.Open(path, device.Options{ReadOnly: true, NoLock: true})
	if err != nil {
		return nil, nil, err
	}
	defer dev.Close()
	info := dev.Info()
	buf := device.AlignedBuffer(2 * layout.PageSize)
	if err := device.ReadAt(ctx, dev, buf, 0); err != nil {
		return nil, &info, err
	}
	sb, _, err := segment.ChooseSuperblock(buf[:layout.PageSize], buf[layout.PageSize:])
	return &sb, &info, err
}

// probe opens the drive for reading, without a lock, and reads its superblock.
func (d *Device) probe(ctx context.Context, id [16]byte) {
	sb, info, err := superblock(ctx, d.Path)
	if info != nil {
		d.Present, d.SizeBytes = true, info.Size
		d.Backend, d.BackendReason, d.Simulated, d.Raw, d.Direct = info.Backend, info.Reason, info.Simulated, info.Raw, info.Direct
	}
	switch {
	case err != nil:
		d.Problem = err.Error()
	case [16]byte(sb.Device) != id:
		d.Problem = "it is another device: " + sb.Device.String()
	case info.Size < sb.DeviceBytes:
		d.Problem = fmt.Sprintf("it has %d bytes, and had %d: it was cut short", info.Size, sb.DeviceBytes)
	}
}

// scan decodes the row of every block that is stored; visit is called from several goroutines, with a lock. Rows
// of what was purged stay until their group is cleaned, and are passed over.
func (v *View) scan(ctx context.Context, visit func(layout.Location, *segment.Record) error) error {
	spaces, err := v.cat.Namespaces(ctx)
	if err != nil {
		return err
	}
	live := map[uint32]bool{}
	for _, n := range spaces {
		live[n.Instance] = true
	}
	purges, err := v.cat.Purges(ctx)
	if err != nil {
		return err
	}
	type salt struct {
		instance uint32
		tag      segment.SaltTag
	}
	purged := map[salt]bool{}
	for _, p := range purges {
		purged[salt{p.Instance, p.Tag}] = true
	}
	var mu sync.Mutex
	return v.cat.ScanBlocks(ctx, 4, func(_ int, l layout.Location, row []byte) error {
		var r segment.Record
		if err := segment.DecodeRecord(row, &r); err != nil {
			return err
		}
		if !live[r.Instance] || purged[salt{r.Instance, r.SaltTag}] {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		return visit(l, &r)
	})
}

// Group is one stripe group.
type Group struct {
	Group        uint32   `json:"group"`         // its number
	Generation   uint64   `json:"generation"`    // reuse count of its segments
	State        string   `json:"state"`         // free, open, sealed or cleaning
	Devices      []int    `json:"devices"`       // indexes of its devices, in striping order
	Segments     []uint32 `json:"segments"`      // its segment on each of them
	SegmentBytes int64    `json:"segment_bytes"` // of one segment (bytes)
	Copies       int      `json:"copies"`        // of each block
	Blocks       int64    `json:"blocks"`        // stored in it (blocks)
	BlockBytes   int64    `json:"block_bytes"`   // payload of them (bytes)
	LiveShare    float64  `json:"live_share"`    // block_bytes ÷ room of all its segments
}

// Groups is all stripe groups.
type Groups struct {
	Store
	Groups []Group `json:"groups"` // stripe groups
}

// Groups lists the stripe groups with what lives in them.
func (v *View) Groups(ctx context.Context) (*Groups, error) {
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := v.cat.Groups(ctx)
	if err != nil {
		return nil, err
	}
	type live struct{ blocks, bytes, all int64 } // all: with every copy
	lives := map[uint32]live{}
	if err := v.scan(ctx, func(l layout.Location, r *segment.Record) error {
		n := lives[l.Group]
		lives[l.Group] = live{n.blocks + 1, n.bytes + r.Bytes(), n.all + r.Bytes()*int64(max(1, len(r.Copies)))}
		return nil
	}); err != nil {
		return nil, err
	}
	out := &Groups{Store: root, Groups: []Group{}}
	for _, r := range rows {
		g := Group{Group: r.Group, Generation: r.Generation, State: r.State.String(), SegmentBytes: r.SegmentBytes, Copies: r.Copies,
			Blocks: lives[r.Group].blocks, BlockBytes: lives[r.Group].bytes, Devices: []int{}, Segments: []uint32{}}
		for _, m := range r.Devices {
			g.Devices = append(g.Devices, int(m.Device))
			g.Segments = append(g.Segments, m.Segment)
		}
		if room := r.SegmentBytes * int64(len(r.Devices)); room > 0 {
			g.LiveShare = float64(lives[r.Group].all) / float64(room)
		}
		out.Groups = append(out.Groups, g)
	}
	return out, nil
}

// Namespace is one namespace with what it holds.
type Namespace struct {
	ID         uint32     `json:"id"`          // its number
	Tenant     string     `json:"tenant"`      // who pays
	Name       string     `json:"name"`        // unique within the tenant
	Model      string     `json:"model"`       // fingerprint
	Shape      skep.Shape `json:"shape"`       // geometry, as package skep's Shape
	Class      string     `json:"class"`       // cache or durable
	Copies     int        `json:"copies"`      // of each block
	Chained    bool       `json:"chained"`     // blocks have parents
	Created    time.Time  `json:"created"`     // RFC 3339
	Instance   uint32     `json:"instance"`    // number its blocks carry; a purge changes it
	Blocks     int64      `json:"blocks"`      // stored (blocks)
	BlockBytes int64      `json:"block_bytes"` // payload of them (bytes)
}

// Namespaces is all namespaces.
type Namespaces struct {
	Store
	Namespaces []Namespace `json:"namespaces"` // namespaces of the store
}

// Namespaces lists the namespaces; blocks that were purged are not counted.
func (v *View) Namespaces(ctx context.Context) (*Namespaces, error) {
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := v.cat.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	out := &Namespaces{Store: root, Namespaces: make([]Namespace, len(rows))}
	at := map[uint32]*Namespace{}
	for i, r := range rows {
		out.Namespaces[i] = Namespace{ID: uint32(r.ID), Tenant: r.Tenant, Name: r.Name, Model: r.Model, Shape: r.Shape, Class: r.Class.String(),
			Copies: max(r.Copies, 1), Chained: r.Chained, Created: r.Created, Instance: r.Instance}
		at[r.Instance] = &out.Namespaces[i]
	}
	return out, v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		if n := at[r.Instance]; n != nil {
			n.Blocks++
			n.BlockBytes += r.Bytes()
		}
		return nil
	})
}

// Place is where a copy of a block begins.
type Place struct {
	Group  uint32 `json:"group"`  // stripe group
	Device int    `json:"device"` // device its first byte is on
	Page   uint32 `json:"page"`   // from the segment's start (4 KiB)
	Sub    uint8  `json:"sub"`    // within the page, for packed values (512 bytes)
}

// Part is one part of a block.
type Part struct {
	Name     string `json:"name"`     // of a part
	Bytes    int64  `json:"bytes"`    // its size (bytes)
	Granules int    `json:"granules"` // checksums it has
	Inline   bool   `json:"inline"`   // in the record, not on devices
}

// Block is one stored block as its record describes it.
type Block struct {
	Key         string  `json:"key"`          // in hexadecimal
	Namespace   uint32  `json:"namespace"`    // its number
	Instance    uint32  `json:"instance"`     // of the namespace when it was put
	Salted      bool    `json:"salted"`       // put under a salt
	Parent      string  `json:"parent"`       // key of the block before it; empty for a chain's first
	Depth       uint32  `json:"depth"`        // blocks before it
	ValidTokens uint32  `json:"valid_tokens"` // of a partial tail; 0: all (tokens)
	Bytes       int64   `json:"bytes"`        // payload of all parts (bytes)
	Version     uint32  `json:"version"`      // write version
	Seq         uint64  `json:"seq"`          // sequence number
	Durable     bool    `json:"durable"`      // survives a crash
	Moved       bool    `json:"moved"`        // written by the cleaner
	Name        string  `json:"name"`         // the engine's own name, quoted
	Parts       []Part  `json:"parts"`        // what it is made of
	Copies      []Place `json:"copies"`       // where its bytes are
}

func blockOf(r *segment.Record, devices map[uint32][]catalog.Member) Block {
	b := Block{Key: r.Key.String(), Namespace: r.NamespaceID, Instance: r.Instance, Salted: r.Flags&segment.RecordSalted != 0,
		Depth: r.Depth, ValidTokens: r.ValidTokens, Bytes: r.Bytes(), Version: r.Version, Seq: r.Seq, Durable: r.Flags&segment.RecordDurable != 0,
		Moved: r.Flags&segment.RecordMoved != 0, Name: fmt.Sprintf("%q", r.Name), Parts: []Part{}, Copies: []Place{}}
	if len(r.Name) == 0 {
		b.Name = ""
	}
	if r.Parent != nil {
		b.Parent = r.Parent.String()
	}
	for _, p := range r.Parts {
		b.Parts = append(b.Parts, Part{p.Name, p.Size, len(p.Sums), p.Inline != nil})
	}
	for _, c := range r.Copies {
		at := Place{c.Group, -1, c.Page, c.Sub}
		if m := devices[c.Group]; int(c.Device) < len(m) {
			at.Device = int(m[c.Device].Device)
		}
		b.Copies = append(b.Copies, at)
	}
	return b
}

func (v *View) members(ctx context.Context) (map[uint32][]catalog.Member, error) {
	rows, err := v.cat.Groups(ctx)
	out := map[uint32][]catalog.Member{}
	for _, g := range rows {
		out[g.Group] = g.Devices
	}
	return out, err
}

// Blocks is what was found of one or more keys.
type Blocks struct {
	Store
	Blocks []Block `json:"blocks"` // of the key, in every namespace asked about
}

// minPrefix is the fewest hexadecimal digits a key may be shortened to.
const minPrefix = 8

// Block finds the blocks whose key is, or begins with, the given hexadecimal digits, in
// all namespaces; NotFound when there is none.
func (v *View) Block(ctx context.Context, key string) (*Blocks, error) {
	key = strings.ToLower(key)
	if _, err := hex.DecodeString(key[:len(key)&^1]); err != nil || len(key) < minPrefix || len(key) > 2*skep.KeySize {
		return nil, skep.Invalidf("inspect block", "key", fmt.Sprintf("%q", key), fmt.Sprintf("%d to %d hexadecimal digits", minPrefix, 2*skep.KeySize))
	}
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	devices, err := v.members(ctx)
	if err != nil {
		return nil, err
	}
	out := &Blocks{Store: root, Blocks: []Block{}}
	if err := v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		if strings.HasPrefix(r.Key.String(), key) && len(out.Blocks) < 1000 {
			out.Blocks = append(out.Blocks, blockOf(r, devices))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if len(out.Blocks) == 0 {
		return nil, &skep.Error{Op: "inspect block", Kind: skep.NotFound, Field: "key", Value: key}
	}
	slices.SortFunc(out.Blocks, func(a, b Block) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Instance, b.Instance)) })
	return out, nil
}
