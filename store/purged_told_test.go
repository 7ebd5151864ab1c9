package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/admission"
)

// told takes events up to the one of a drive, which the test emits behind all it has done.
func told(t *testing.T, s *Store, events skep.EventStream) (kinds []skep.EventKind) {
	t.Helper()
	s.events.Emit(skep.Event{Kind: skep.EventDevice})
	var list [16]skep.Event
	for {
		n, err := events.Next(testContext(t), list[:])
		require.NoError(t, err)
		for _, e := range list[:n] {
			if e.Kind == skep.EventDevice {
				return kinds
			}
			kinds = append(kinds, e.Kind)
		}
	}
}

// Behind the event of a purge nothing is told of the blocks that it took, nor of those of a put, or a delete, that had
// found its namespace or its salt's tag before: who follows would take them for stored, or a block that was put since
// for deleted.
func TestNothingIsToldOfWhatWasPurged(t *testing.T) {
	t.Parallel()
	for _, salt := range []skep.Salt{"", "who"} {
		for _, c := range []struct {
			name      string
			admission string
			ack       skep.Ack
			chained   bool
		}{{"committed", admission.All, skep.AckCommitted, true}, {"without parents", admission.All, skep.AckCommitted, false},
			{"accepted", admission.All, skep.AckAccepted, true}, {"waiting for admission", admission.Budget, skep.AckAccepted, true}} {
			t.Run(c.name+" salt "+string(salt), func(t *testing.T) {
				t.Parallel()
				s, _, _ := admitting(t, func(o *Options) { o.Admission = c.admission })
				ctx := testContext(t)
				sc := openSpace(t, s, "n", skep.Cache, 1, c.chained)
				sc.Salt = salt
				events, err := s.Events(ctx, skep.Cursor{}, false)
				require.NoError(t, err)
				defer events.Close()
				purge := skep.Purge{Namespace: sc.Namespace}
				if salt != "" {
					purge = skep.Purge{Salt: &sc}
				}
				keys := chainKeys(1, 3)
				ns, tag, err := s.names.Resolve("put", sc)
				require.NoError(t, err)
				_, blocks, results := preparedPut(t, s, sc, keys)
				require.NoError(t, s.Purge(ctx, purge))
				require.NoError(t, s.ingest.Put(ctx, ns, blocks, c.ack))
				for _, r := range results {
					require.True(t, r.Outcome == skep.Committed || r.Outcome == skep.Accepted, "%v", r)
				}
				_, err = s.rows.Delete(ctx, ns, tag, keys[:1])
				require.NoError(t, err)
				require.NoError(t, s.Flush(ctx))
				require.Equal(t, []skep.EventKind{skep.EventPurged}, told(t, s, events))

				putRun(t, s, sc, keys[:1], blockSize)
				require.NoError(t, s.Flush(ctx))
				require.Contains(t, told(t, s, events), skep.EventCommitted, "the next is told of")
			})
		}
	}
}
