package httpapi

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// There is one CPU profile and one trace in a process: who has hung up keeps it from nobody.
func TestATraceEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, auth.AnyTenant, tokenOperator, auth.All)}, nil, nil)
	require.NoError(t, err)
	st := memstore.New(memstore.Options{})
	defer st.Close()
	h, err := New(Options{Store: st, Auth: d, Timeout: time.Hour})
	require.NoError(t, err)
	ctx, hangUp := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		r := httptest.NewRequest("GET", "http://localhost/debug/pprof/trace?seconds=3600", nil).WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+tokenOperator)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	hangUp()
	ended := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	require.Eventually(t, ended, time.Minute, 10*time.Millisecond, "the trace goes on though its caller has hung up")
}
