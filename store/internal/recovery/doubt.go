package recovery

import (
	"context"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Doubt is a row that an unclean end left in doubt. How many there can be is bounded by
// Options.FlushBytes and FlushInterval.
type Doubt struct {
	at  layout.Location
	row []byte
}

// verifiers is how many blocks are verified at a time: as deep as drives like it.
const verifiers = 64

// Verify reads every block that was acknowledged after the last flush, and
// drops those whose bytes did not reach the drive: a crash of the machine may have
// lost them, a crash of the process has not.
func (ld *Loader) Verify(ctx context.Context, doubtful []Doubt) error {
	if len(doubtful) == 0 {
		return nil
	}
	ld.Log.Info("verifying blocks written after the last flush", "blocks", len(doubtful))
	type bad struct {
		Doubt
		fp index.Fingerprint
	}
	var lost []bad
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan Doubt, 256)
	var first error
	for range verifiers {
		wg.Go(func() {
			var buf []byte
			for d := range next {
				fp, ok, err := VerifyRow(ctx, ld.Names, ld.Space, d.at, d.row, &buf)
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				if err == nil && !ok {
					lost = append(lost, bad{d, fp})
				}
				mu.Unlock()
			}
		})
	}
	for _, d := range doubtful {
		next <- d
	}
	close(next)
	wg.Wait()
	if first != nil {
		return first
	}
	if len(lost) > 0 {
		b := ld.Catalog.NewBatch()
		for _, x := range lost {
			b.DeleteBlock(x.at)
			ld.Space.Suspect(ld.Space.Loaded(x.at.Group))
			if _, ok := ld.Index.Remove(x.fp, x.at.Pack()); ok {
				h, _ := segment.DecodeHead(x.row) // that could be decoded when it was counted
				ld.Names.Unstored(h.Instance, h.Bytes)
			}
		}
		if err := ld.Catalog.Commit(ctx, b, true); err != nil {
			return err
		}
		ld.Log.Warn("blocks not whole after the crash were dropped", "blocks", len(lost))
	}
	ld.Log.Info("blocks written after the last flush verified", "blocks", len(doubtful), "dropped", len(lost))
	ld.Root.Owe() // so that the mark moves past what was verified
	return nil
}

// VerifyRow reads the block of one row and says whether its bytes are right. An error
// means that could not be found out.
func VerifyRow(ctx context.Context, names *namespaces.Table, groups *space.Table, at layout.Location, row []byte,
	buf *[]byte) (fp index.Fingerprint, ok bool, err error) {
	var rec segment.Record
	if err := segment.DecodeRecord(row, &rec); err != nil {
		return fp, false, catalog.DamagedRow(at, err)
	}
	fp = names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	ns, g := names.Of(rec.Instance), groups.Loaded(at.Group)
	if ns == nil || g == nil {
		return fp, true, nil
	}
	n := int(rec.Pages) * layout.PageSize
	if len(*buf) < n {
		*buf = device.AlignedBuffer(n)
	}
	got, err := groups.ReadOpening(ctx, g, ns.Info.Shape, &rec, (*buf)[:n])
	if segio.Lent(*buf, got, err) {
		*buf = nil
	}
	switch skep.KindOf(err) {
	case skep.Damaged:
		return fp, false, nil
	case skep.Deadline:
		return fp, ctx.Err() == nil, segio.Ended(ctx, "open store")
	case skep.DeviceFailed:
		return fp, true, nil // what cannot be read now may be right: reads will tell
	}
	return fp, err == nil, err
}
