package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep/replication/bucket"
)

// openBucket puts object storage behind the store, where there is some.
func (s *server) openBucket() error {
	b := &s.c.Bucket
	if b.Endpoint == "" {
		return nil
	}
	id, _, err := s.c.member()
	if err != nil {
		return err
	}
	var serves func() bool
	if id != nil { // it may have missed deletions, until the fence says that it has not
		serves = func() bool { f := s.opened.Load(); return f != nil && f.Open() }
	}
	st, err := b.Open(s.st, s.c.Cluster == "" && id == nil, serves, s.log.With("part", "bucket"))
	if err != nil {
		return err
	}
	s.st = st
	s.reg.MustRegister(bucketMetrics{st})
	s.log.Info("object storage is behind the drives", "endpoint", b.Endpoint, "bucket", b.Bucket, "prefix", b.Prefix)
	return nil
}

// bucketMetrics shows object storage to Prometheus.
type bucketMetrics struct{ s *bucket.Store }

var (
	descBucketHas   = prometheus.NewDesc("skep_bucket_blocks", "Blocks that object storage has.", nil, nil)
	descBucketBytes = prometheus.NewDesc("skep_bucket_bytes", "Bytes of objects.", nil, nil)
	descBucketMoved = prometheus.NewDesc("skep_bucket_moved_bytes_total", "Bytes sent to object storage and fetched.",
		[]string{"direction"}, nil)
	descBucketBlocks = prometheus.NewDesc("skep_bucket_moved_blocks_total", "Blocks sent to object storage and fetched.",
		[]string{"direction"}, nil)
	descBucketLost = prometheus.NewDesc("skep_bucket_refused_total",
		"Blocks over a budget or bucket.index_bytes; fetched ones that the store declined; failed calls; what could not be read.",
		[]string{"what"}, nil)
	descBucketUnread = prometheus.NewDesc("skep_bucket_unread_objects",
		"Objects left out of the index.", nil, nil)
	descBucketOther = prometheus.NewDesc("skep_bucket_other_key_objects", "Objects of the other key.", nil, nil)
	descBucketUp    = prometheus.NewDesc("skep_bucket_up",
		"1: object storage answered the last read and write, however old.", nil, nil)
)

// Describe implements prometheus.Collector.
func (bucketMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m bucketMetrics) Collect(out chan<- prometheus.Metric) {
	u := m.s.Usage()
	gauge := func(d *prometheus.Desc, n int64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	count := func(d *prometheus.Desc, n int64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	gauge(descBucketHas, u.Blocks)
	gauge(descBucketBytes, u.Bytes)
	gauge(descBucketUnread, u.Unread)
	gauge(descBucketOther, u.OtherKey)
	up := int64(1)
	if u.Err != nil {
		up = 0
	}
	gauge(descBucketUp, up)
	count(descBucketMoved, u.SentBytes, "sent")
	count(descBucketMoved, u.LoadedBytes, "fetched")
	count(descBucketBlocks, u.SentBlocks, "sent")
	count(descBucketBlocks, u.LoadedBlocks, "fetched")
	count(descBucketLost, u.Refused, "budget")
	count(descBucketLost, u.Declined, "declined")
	count(descBucketLost, u.Failed, "failed")
	count(descBucketLost, u.Damaged, "damaged")
	count(descBucketLost, u.Unindexed, "index")
}
