package rebuild

import (
	"context"
	"log/slog"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// Drive is a drive of the store, or the place of one that is not there.
type Drive struct {
	IO       segio.Drive
	Path     string
	Segments int
	Absent   bool
	Away     func() bool         // absent, or it does not answer any more
	Row      catalog.DeviceState // what the new catalog says of it, but for its segments
}

func (d *Drive) offset(segment uint32) int64 {
	return layout.SegmentOffset(int(segment), d.IO.SegmentBytes)
}

// Store is what a rebuild asks of the store whose catalog it makes.
type Store interface {
	// GiveUp makes a place for the drive number i, of which nothing is there.
	GiveUp(i int) *Drive
	// Found tells of the groups there are, by number, before Whole is asked about blocks in them.
	Found(groups []*catalog.GroupState)
	// Whole says whether the block of a row has its bytes. buf is memory that may be used, and replaced.
	Whole(ctx context.Context, at layout.Location, row []byte, buf *[]byte) (bool, error)
	// WriteHeader writes the i-th header of a group.
	WriteHeader(ctx context.Context, g *catalog.GroupState, i int) error
	// Claim adds to a batch whose the drives are.
	Claim(b *catalog.Batch) error
}

// Input is what a rebuild goes by.
type Input struct {
	Store        Store
	Catalog      *catalog.Catalog  // the new one: it is emptied
	Names        *namespaces.Table // empty; it is filled
	ID           segment.StoreID
	Secret       segment.Secret
	SegmentBytes int64
	Limits       catalog.Limits
	Drives       []*Drive       // by number
	Partial      bool           // it goes on without drives that are missing
	Missing      int            // drives that are not there; which of the absent ones were removed long ago is not known
	GivenUp      int            // drives that earlier rebuilds went on without
	Left         []report.Fault // devices that lie among the store's, and are left alone
	DryRun       bool           // nothing is written to the drives
	RowBytes     int            // memory for rows; 0: as much as is good
	Timeout      time.Duration
	Wall         func() time.Time
	Log          *slog.Logger
	Progress     func(report.RebuildProgress) // may be nil; told one at a time
}

// Run makes the new catalog. The report says what was found also when there is an error.
func Run(ctx context.Context, in Input) (report.Rebuild, error) {
	r := newRebuilder(in)
	err := r.run(ctx)
	return r.rep, err
}

// absent is how many drives are not there.
func (r *rebuilder) absent() (n int) {
	for _, d := range r.drives {
		if d.Absent {
			n++
		}
	}
	return n
}

// named are the numbers of the drives that groups have segments on.
func (r *rebuilder) named() map[uint16]bool {
	out := map[uint16]bool{}
	for _, g := range r.groups {
		for _, m := range g.state.Devices {
			out[m.Device] = true
		}
	}
	return out
}

// driveOf is the drive of a group's i-th segment.
func (r *rebuilder) driveOf(g *foundGroup, i int) *Drive { return r.drives[g.state.Devices[i].Device] }

// logOf is the log in a group's i-th segment.
func (r *rebuilder) logOf(g *foundGroup, i int) segio.Log {
	id := segment.LogID{Store: r.in.ID, Secret: r.in.Secret, Group: g.state.Group, Generation: g.state.Generation, Position: uint16(i)}
	return segio.Log{Drive: r.driveOf(g, i).IO, Segment: g.state.Devices[i].Segment, ID: id}
}
