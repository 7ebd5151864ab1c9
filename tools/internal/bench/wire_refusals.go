package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// refusals is how many calls of the binary protocol the server has refused, by the upper bounds in
// seconds of the buckets that say how long that took; each bucket counts those below it too.
func (s *wireServer) refusals(ctx context.Context) (map[float64]int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics: %s: %w", res.Status, err)
	}
	out := map[float64]int64{}
	for _, line := range strings.Split(string(text), "\n") {
		rest, ok := strings.CutPrefix(line, "skep_call_duration_seconds_bucket{")
		labels, value, ok2 := strings.Cut(rest, "} ")
		if !ok || !ok2 || !strings.Contains(labels, `outcome="shed"`) || !strings.Contains(labels, `protocol="wire"`) {
			continue
		}
		_, le, _ := strings.Cut(labels, `le="`)
		le, _, _ = strings.Cut(le, `"`)
		bound, err := strconv.ParseFloat(le, 64)
		if err != nil {
			return nil, fmt.Errorf("/metrics: %q: %w", line, err)
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("/metrics: %q: %w", line, err)
		}
		out[bound] += int64(n) // over all calls
	}
	return out, nil
}

// sumRefusals tells what was refused between two readings.
func (o *WireOverload) sumRefusals(before, after map[float64]int64) {
	bounds := make([]float64, 0, len(after))
	for b := range after {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	all := after[math.Inf(1)] - before[math.Inf(1)]
	o.RefusedAt = all
	for _, b := range bounds {
		n := after[b] - before[b]
		if b < 0.0103 {
			o.RefusedIn10 = Div(float64(n), float64(all))
		}
		if o.RefusedMs99 == 0 && n > 0 && float64(n) >= 0.99*float64(all) {
			o.RefusedMs99 = 1000 * b
		}
		if o.RefusedMsAll == 0 && n > 0 && n == all && !math.IsInf(b, 1) {
			o.RefusedMsAll = 1000 * b
		}
	}
	if math.IsInf(o.RefusedMs99, 1) {
		o.RefusedMs99 = 0 // longer than any bucket, which JSON has no number for
	}
}
