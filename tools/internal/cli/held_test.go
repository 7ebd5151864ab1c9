package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/store/storetest"
)

// original is a store that is never touched: place/store is its directory, place/drives has its devices where
// they lie outside.
type original struct {
	name    string
	place   string
	outside bool
	id      segment.StoreID
	blocks  []held
}

// held is a block as it was put.
type held struct {
	scope   skep.Scope
	key     skep.Key
	space   string // the namespace's name
	durable bool
	data    []byte
	gone    bool // it was deleted, and acknowledged as that
}

// heldIn is a store with blocks in two copies, or with durable blocks in one.
func heldIn(t *testing.T, copies int) (o *original, dir string) {
	o = &original{name: t.Name(), place: t.TempDir()}
	o.fill(t, 0, 12, copies)
	return o, filepath.Join(o.place, "store")
}

const operatorBlock = 8 << 10

// options are those the store was made with.
func (o *original) options() store.Options { return o.optionsAt(o.place) }

// optionsAt are options of a copy. Where devices are is not said.
func (o *original) optionsAt(place string) store.Options {
	return store.Options{Dir: filepath.Join(place, "store"), DeviceCount: 3, SegmentBytes: 128 << 10, BlockBytes: operatorBlock, CapacityBytes: 9 << 20,
		CacheBytes: -1, IOBytes: 32 << 20, MustExist: true}
}

// fill puts n blocks of each namespace, deletes some of them, and notes both.
func (o *original) fill(t *testing.T, from, n, copies int) {
	ctx, made := context.Background(), o.optionsAt(o.place)
	made.MustExist = from%100 != 0
	if o.outside && !made.MustExist {
		require.NoError(t, os.MkdirAll(filepath.Join(o.place, "drives"), 0o755))
		for i := range 3 {
			made.Devices = append(made.Devices, filepath.Join(o.place, "drives", fmt.Sprintf("device-%d", i)))
		}
	}
	s, err := store.Open(ctx, made)
	require.NoError(t, err)
	for _, space := range []skep.NamespaceSpec{
		{Name: "twice", Class: skep.Durable, Copies: 2},
		{Name: "held", Class: skep.Durable, Copies: copies},
		{Name: "cached", Class: skep.Cache, Copies: 1},
	} {
		space.Tenant, space.Shape = "t", skep.Shape{Kind: skep.Opaque, BlockTokens: 1}
		ns, err := s.OpenNamespace(ctx, space)
		require.NoError(t, err)
		r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
		begin := len(o.blocks)
		for i := range n {
			b := held{scope: r.Scope, key: skep.KeyOf([]byte(fmt.Sprint(o.name, space.Name, from+i))), space: space.Name, durable: space.Class == skep.Durable}
			b.data = storetest.Payload(b.key, skep.PartKV, operatorBlock)
			o.blocks = append(o.blocks, b)
			r.Blocks = append(r.Blocks, skep.Block{Key: b.key, Parts: []skep.Part{{Name: skep.PartKV, Bytes: b.data}}})
		}
		res, err := s.Put(ctx, r)
		require.NoError(t, err)
		for _, r := range res {
			require.Equal(t, skep.Committed, r.Outcome)
		}
		var gone []skep.Key
		for i := begin; i < len(o.blocks); i += 5 {
			o.blocks[i].gone = true
			gone = append(gone, o.blocks[i].key)
		}
		deleted, err := s.Delete(ctx, r.Scope, gone)
		require.NoError(t, err)
		require.Equal(t, len(gone), deleted)
	}
	require.NoError(t, s.Close())
	sb, err := superblockOf(devicesAt(o.place)[0])
	require.NoError(t, err)
	o.id = sb.Store
}

// requireAll opens the original, which must have everything.
func (o *original) requireAll(t *testing.T) {
	s, err := store.Open(t.Context(), o.options())
	require.NoError(t, err)
	for i := range o.blocks {
		b := &o.blocks[i]
		data, err := readBlock(t.Context(), s, b)
		require.True(t, b.gone && err != nil || err == nil && bytes.Equal(b.data, data), "block %d of the original: %v", i, err)
	}
	require.NoError(t, s.Close())
}

// devicesAt are the files of a copy that may be devices of the store.
func devicesAt(place string) (list []string) {
	for _, dir := range []string{"store", "drives"} {
		names, _ := filepath.Glob(filepath.Join(place, dir, "device-*"))
		list = append(list, names...)
	}
	return list
}

func superblockOf(path string) (segment.Superblock, error) {
	b := make([]byte, 2*layout.PageSize)
	f, err := os.Open(path)
	if err != nil {
		return segment.Superblock{}, err
	}
	defer f.Close()
	if _, err := io.ReadFull(f, b); err != nil {
		return segment.Superblock{}, err
	}
	sb, _, err := segment.ChooseSuperblock(b[:layout.PageSize], b[layout.PageSize:])
	return sb, err
}

// readBlock is the bytes of one block; an error says why there are none.
func readBlock(ctx context.Context, s skep.Store, b *held) (data []byte, err error) {
	chain := skep.Chain{Scope: b.scope, Keys: []skep.Key{b.key}, Deadline: time.Time{}}
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{chain}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ses.Close(ctx)) }()
	chunks := make([]skep.Chunk, 1)
	for {
		n, end := ses.Next(ctx, chunks)
		for i := range chunks[:n] {
			err = errors.Join(err, chunks[i].Err)
			for _, d := range chunks[i].Data {
				data = append(data, d...)
			}
			chunks[i].Release()
		}
		if errors.Is(end, io.EOF) {
			return data, err
		}
		if end != nil {
			return nil, end
		}
	}
}
