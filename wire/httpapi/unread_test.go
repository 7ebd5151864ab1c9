package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// unread is where an answer goes whose client does not read before it is let.
type unread struct {
	*httptest.ResponseRecorder
	read    chan struct{}
	begun   *atomic.Int64
	largest int
}

func (u *unread) Write(b []byte) (int, error) {
	if u.largest == 0 && u.Code == http.StatusOK {
		u.begun.Add(1)
		<-u.read
	}
	u.largest = max(u.largest, len(b))
	return u.ResponseRecorder.Write(b)
}

func (u *unread) WriteString(s string) (int, error) { return u.Write([]byte(s)) }

// However many requests a tenant makes, over one connection or many, few of its answers are under way; the next is told
// to come back, and another tenant finds room. A listing is made as it is read.
func TestAnswersThatNobodyReadsAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, false)
		for i := range 100 {
			_, err := f.store.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "a", Name: fmt.Sprintf("%0500d", i),
				Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
			require.NoError(t, err)
		}
		var begun atomic.Int64
		read := make(chan struct{})
		ask := func(token string) *unread {
			w := &unread{ResponseRecorder: httptest.NewRecorder(), read: read, begun: &begun}
			r := httptest.NewRequest(http.MethodGet, "http://localhost/api/v1/namespaces", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			go f.handler.ServeHTTP(w, r)
			return w
		}
		var all []*unread
		for range 2 * mostUnderWay {
			all = append(all, ask(tokenReader))
		}
		synctest.Wait()
		require.EqualValues(t, mostUnderWay*3/4, begun.Load())
		other := ask(tokenOther)
		synctest.Wait()
		require.EqualValues(t, mostUnderWay*3/4+1, begun.Load())
		close(read)
		synctest.Wait()
		require.Equal(t, http.StatusOK, other.Code)
		answered := 0
		for _, w := range all {
			switch w.Code {
			case http.StatusOK:
				answered++
				require.Equal(t, 100, strings.Count(w.Body.String(), `"name":"0`))
				require.Less(t, w.largest, 1<<10)
			default:
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
			}
		}
		require.Equal(t, mostUnderWay*3/4, answered)
		again := ask(tokenReader)
		synctest.Wait()
		require.Equal(t, http.StatusOK, again.Code)
	})
}
