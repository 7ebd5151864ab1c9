package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A server that is to end says at once that it is not ready, whatever it waits for before it drains.
func TestAServerThatEndsIsNotReady(t *testing.T) {
	t.Parallel()
	c := local(t)
	again, reading, hold := make(chan os.Signal), make(chan struct{}), make(chan struct{})
	st := memstore.New(memstore.Options{})
	defer st.Close()
	r := start(t, c, Options{Store: st, Again: again, Reload: func() (*Config, error) {
		close(reading)
		<-hold
		return c, nil
	}})
	again <- os.Interrupt
	<-reading
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { assert.NoError(t, r.stop()) })
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	assert.Eventually(t, func() bool {
		res, err := web.Get("http://" + r.at("http") + "/readyz")
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusServiceUnavailable
	}, time.Minute, 10*time.Millisecond)
	close(hold)
	crew.Wait()
}

// A start that fails once the gateway is open leaves no connection to the other nodes.
func TestAStartThatFailsClosesTheGateway(t *testing.T) {
	t.Parallel()
	c := local(t)
	c.Cluster, c.Node, c.Listen, c.HTTP = write(t, "map.yaml", mapText), "a", None, None
	c.Redis.ExistsLease = Duration(skep.MaxLease) + 1 // which RESP refuses
	st := memstore.New(memstore.Options{})
	defer st.Close()
	s := newServer(c, Options{Store: st, Log: io.Discard})
	require.ErrorIs(t, s.run(t.Context()), skep.Invalid)
	require.NotNil(t, s.whole)
	_, err := s.whole.Stats(t.Context())
	require.ErrorIs(t, err, skep.Closed)
	require.Empty(t, s.others.all)
}

// A server that has failed says so where it is told to end before it has.
func TestAServerThatFailedAndIsToldToEndHasFailed(t *testing.T) {
	t.Parallel()
	broken := errors.New("a listener failed")
	for _, want := range []error{broken, nil} {
		ctx, end := context.WithCancel(t.Context())
		run, stop := context.WithCancelCause(ctx)
		if want != nil {
			stop(want)
		}
		end()
		stop(errors.New("what fails because it ends"))
		require.Equal(t, want, failed(run, ctx))
	}
}
