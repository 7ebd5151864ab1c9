package appender

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
)

// Limits of one append and of what one put has under way. An append is one record
// log entry group and one catalog batch; several under way keep the drives busy
// while checksums are computed.
const (
	MaxBytes    = 16 << 20 // of payload; one block may be larger
	MaxBlocks   = 512
	writeWindow = 48 << 20
)

// Write stores blocks: place, write, checksum, log, commit, publish; several
// appends under way at once. Each block's result is filled.
func (w *Appender) Write(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*Block) error {
	if st == space.User && w.Full() {
		w.Decline(blocks, w.Why())
		return nil
	}
	keys := make([]index.Fingerprint, len(blocks))
	for i, in := range blocks {
		keys[i] = in.FP
	}
	w.Puts.Rivals.Begin(keys, w.Root.Last())
	defer w.Puts.Rivals.End(keys)
	var underway []*Append
	var bytes int64
	finish := func() error {
		a := underway[0]
		underway = underway[1:]
		bytes -= a.bytes
		return w.finish(ctx, a)
	}
	drain := func() (err error) {
		for len(underway) > 0 {
			if e := finish(); err == nil {
				err = e
			}
		}
		return err
	}
	for len(blocks) > 0 {
		patience := w.SpaceTimeout
		if len(underway) > 0 {
			patience = 0 // what is to be cleaned may be what our own appends lie in
		}
		a, n, err := w.place(ctx, ns, st, blocks, time.Now().Add(patience))
		if err != nil {
			waits := len(underway) > 0
			if e := drain(); e != nil {
				return e
			}
			if waits {
				continue
			}
			if !Declines(err) {
				return err
			}
			w.Decline(blocks[:n], skep.KindOf(err))
			blocks = blocks[n:]
			continue
		}
		blocks = blocks[n:]
		w.start(ctx, a)
		underway = append(underway, a)
		for bytes += a.bytes; bytes > writeWindow && len(underway) > 1; {
			if err := finish(); err != nil {
				drain()
				return err
			}
		}
	}
	return drain()
}

// Declines says whether an error declines blocks, as its kind, and does not fail their put.
func Declines(err error) bool {
	why := skep.KindOf(err)
	return why == skep.Full || why == skep.ReadOnly || why == skep.DeviceFailed
}

// Decline answers puts of blocks that are not stored.
func (w *Appender) Decline(blocks []*Block, why skep.Kind) {
	for _, in := range blocks {
		*in.Result = skep.PutResult{Outcome: skep.Declined, Reason: why}
		w.Count.Declined.Add(why)
	}
}
