package bucket

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// slow is a Bucket whose calls take as long as those of a server in one's region.
type slow struct{ Bucket }

const (
	slowFirst = 30 * time.Millisecond
	slowRate  = 200e6 // bytes a second, of one call
)

func (s slow) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	end := time.After(slowFirst + time.Duration(float64(max(n, 0))/slowRate*float64(time.Second)))
	b, err := s.Bucket.Get(ctx, name, off, n)
	<-end
	return b, err
}

// What restoring 64 blocks of 1 MiB through the bucket takes, by what the same calls of the Bucket alone take: x-alone,
// the median of pairs that take turns.
func BenchmarkRestore(b *testing.B) {
	const size, count = 1 << 20, 64
	shelf := newShelf()
	o := options(slow{shelf})
	o.ObjectBytes = count * size
	own := memstore.New(memstore.Options{})
	s, err := New(own, o)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	info, err := s.OpenNamespace(b.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: size}})
	require.NoError(b, err)
	sc := skep.Scope{Namespace: info.ID}
	keys := chain(1, count)
	r := &skep.PutRequest{Scope: sc}
	for _, k := range keys {
		part := skep.Part{Name: skep.PartKV, Bytes: storetest.Payload(k, skep.PartKV, size)}
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{part}})
	}
	_, err = s.Put(b.Context(), r)
	require.NoError(b, err)
	told := make(chan error, 1)
	s.kick <- told
	require.NoError(b, <-told)
	calls := cut(s.all()[0].run(keys, 0))
	mem := make([]byte, count*size)
	var ratios, through []float64
	for b.Loop() {
		_, err := own.Delete(b.Context(), sc, keys)
		require.NoError(b, err)
		from := time.Now()
		done := make(chan error, len(calls))
		for _, places := range calls {
			go func() {
				first, last := places[0], places[len(places)-1]
				_, err := s.o.Bucket.Get(b.Context(), s.all()[0].name+blocksDir+first.of.id, first.off,
					last.off+int64(last.size)-first.off)
				done <- err
			}()
		}
		for range calls {
			require.NoError(b, <-done)
		}
		between := time.Now()
		err = skep.Load(b.Context(), s, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys,
			Dest: skep.Destination{Memory: mem, Stride: size}}}}, func(c *skep.Chunk) error { return c.Err })
		require.NoError(b, err)
		end := time.Now()
		alone, took := between.Sub(from), end.Sub(between)
		ratios, through = append(ratios, float64(took)/float64(alone)), append(through, took.Seconds()*1000)
	}
	slices.Sort(ratios)
	slices.Sort(through)
	b.ReportMetric(ratios[len(ratios)/2], "x-alone")
	b.ReportMetric(through[len(through)/2], "ms/restore")
	b.ReportMetric(float64(len(calls)), "calls")
}
