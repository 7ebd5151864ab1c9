package catalog

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Block rows by the million, for a rebuild: written in their order into tables beside the
// catalog's own, which Pebble then takes in as they are. They pass no log and no memtable
// and are written once, with snappy: a third of the bytes, and half of zstd's time.

// Table is a table that was written and is not part of the catalog yet.
type Table struct{ path string }

// loadPrefix names such tables; Pebble passes over names that are not its own.
const loadPrefix = "load-"

// WriteTable writes n block rows, in strictly rising order of their places, into a table,
// durably. row gives them one after the other. After an error what was written is of no use
// and is removed by the next Empty.
func (c *Catalog) WriteTable(ctx context.Context, n int, row func(i int) (layout.Location, []byte)) (Table, error) {
	const op = "write table of block rows"
	if n < 1 {
		return Table{}, skep.Invalidf(op, "rows", n, "at least 1")
	}
	t := Table{path: c.fs.PathJoin(c.dir, loadPrefix+strconv.FormatInt(c.loads.Add(1), 10)+".sst")}
	err := c.call(ctx, op, func(v *visitor) error {
		f, err := c.fs.Create(t.path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		out := &tableFile{f: vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: loadSyncBytes})}
		w := sstable.NewWriter(out, c.tables)
		return errors.Join(fillTable(v, w, n, row), w.Close())
	})
	return t, err
}

// fillTable adds rows a few at a time: what belongs to the caller is touched in v only.
func fillTable(v *visitor, w *sstable.Writer, n int, row func(i int) (layout.Location, []byte)) error {
	const atOnce = 256
	var key [blockKeySize]byte
	for from := 0; from < n; from += atOnce {
		var failed error
		err := v.do(func() error {
			for i := from; i < min(from+atOnce, n) && failed == nil; i++ {
				l, rec := row(i)
				failed = w.Set(appendBlockKey(key[:0], l), rec)
			}
			return nil
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}

// Ingest makes the rows of tables part of the catalog, durably. No two of them may overlap.
// They are newer than what is in the catalog.
func (c *Catalog) Ingest(ctx context.Context, tables []Table) error {
	const atOnce = 256 // so that a call does not take long
	for len(tables) > 0 {
		n := min(atOnce, len(tables))
		paths := make([]string, n)
		for i := range paths {
			paths[i] = tables[i].path
		}
		if err := c.call(ctx, "take in tables", func(*visitor) error { return c.db.Ingest(context.Background(), paths) }); err != nil {
			return err
		}
		tables = tables[n:]
	}
	return nil
}

// Empty removes all rows, durably, and tables that were written and not taken in: what a
// rebuild that was cut off has left. REQUIRES: nobody else uses c.
func (c *Catalog) Empty(ctx context.Context) error {
	return c.call(ctx, "empty catalog", func(*visitor) error {
		names, err := c.fs.List(c.dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, loadPrefix) {
				if err := c.fs.Remove(c.fs.PathJoin(c.dir, name)); err != nil {
					return err
				}
			}
		}
		it, err := c.db.NewIter(nil)
		if err != nil {
			return err
		}
		any := it.First()
		if err := finish(it, nil); err != nil || !any {
			return err
		}
		return c.db.DeleteRange([]byte{0}, []byte{0xff}, pebble.Sync)
	})
}

// Of a table being written: how much goes into one write, and how much is left to the
// system before it is told to begin writing it out.
const (
	loadWriteBytes = 256 << 10
	loadSyncBytes  = 1 << 20
)

// tableFile is where a table is written to: Pebble's objstorage.Writable.
type tableFile struct {
	f   vfs.File
	buf []byte
}

func (t *tableFile) Write(p []byte) error {
	if t.buf == nil {
		t.buf = make([]byte, 0, loadWriteBytes)
	}
	if len(t.buf)+len(p) > cap(t.buf) {
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(p) > cap(t.buf) {
		_, err := t.f.Write(p)
		return err
	}
	t.buf = append(t.buf, p...)
	return nil
}

func (t *tableFile) flush() error {
	_, err := t.f.Write(t.buf)
	t.buf = t.buf[:0]
	return err
}

func (t *tableFile) Finish() error {
	err := t.flush()
	if err == nil {
		err = t.f.Sync()
	}
	return errors.Join(err, t.f.Close())
}

func (t *tableFile) Abort() { _ = t.f.Close() }
