package serve

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/replication/bucket/s3"
	"github.com/skepkv/skep/tools/internal/kvevents"
)

// checkBucket lists what is wrong with the settings of object storage.
func (c *Config) checkBucket() (wrong []error) {
	b := &c.Bucket
	if b.Endpoint == "" {
		return nil
	}
	if b.KeyFile == "" {
		wrong = append(wrong, problem("bucket.key_file", "empty", "a file with a key: objects are always encrypted"))
	}
	if _, err := s3.Open(c.s3Options()); err != nil {
		wrong = append(wrong, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: "bucket", Err: err})
	}
	if b.Every == 0 {
		wrong = append(wrong, problem("bucket.every", b.Every, "10ms to 2m30s"))
	}
	if b.TokensPerSecond < 0 || b.TokensPerSecond > 1e9 {
		wrong = append(wrong, problem("bucket.tokens_per_second", b.TokensPerSecond, "0 to 1e9"))
	}
	o := c.bucketOptions()
	if err := o.Check(); err != nil {
		wrong = append(wrong, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: "bucket", Err: err})
	}
	return append(wrong, kvevents.CheckPatterns("bucket.namespaces", b.Namespaces)...)
}

func (c *Config) s3Options() s3.Options {
	b := &c.Bucket
	return s3.Options{Endpoint: b.Endpoint, Bucket: b.Bucket, Prefix: b.Prefix, Region: b.Region}
}

func (c *Config) bucketOptions() bucket.Options {
	b := &c.Bucket
	o := bucket.Options{
		Sends:   func(n *skep.NamespaceSpec) bool { return kvevents.Selects(b.Namespaces, n) },
		BeginAt: b.BeginAt, Every: time.Duration(b.Every), Unfound: b.Unfound, MaxBytes: int64(b.MaxBytes),
		Budget: bucket.Budget{
			Rate: int64(b.Rate), SendADay: int64(b.SendADay), LoadADay: int64(b.LoadADay), MoneyDay: b.MoneyADay,
			Prices: bucket.Prices{Write: b.PriceWrite / 1000, Read: b.PriceRead / 1000, Byte: b.PriceGiB / (1 << 30)},
		},
	}
	if b.TokensPerSecond > 0 {
		o.Recompute = &skep.RecomputeCost{PerToken: time.Duration(float64(time.Second) / b.TokensPerSecond)}
	}
	return o
}

// openBucket puts object storage behind the store, where there is some.
func (s *server) openBucket() error {
	b := &s.c.Bucket
	if b.Endpoint == "" {
		return nil
	}
	failed := func(field string, err error) error {
		return &skep.Error{Op: "serve", Kind: skep.Invalid, Field: field, Err: err}
	}
	so := s.c.s3Options()
	if b.CredentialsFile != "" {
		text, err := readFile(b.CredentialsFile, maxKeyBytes)
		if err != nil {
			return failed("bucket.credentials_file", err)
		}
		lines := strings.Fields(string(text))
		if len(lines) != 2 {
			return problem("bucket.credentials_file", fmt.Sprintf("%d lines", len(lines)), "2: access key and secret key")
		}
		so.AccessKey, so.SecretKey = lines[0], lines[1]
	}
	at, err := s3.Open(so)
	if err != nil {
		return err
	}
	o := s.c.bucketOptions()
	o.Bucket = at
	if o.Key, err = readKey(b.KeyFile); err != nil {
		return failed("bucket.key_file", err)
	}
	id, _, err := s.c.member()
	if err != nil {
		return err
	}
	o.Alone = s.c.Cluster == "" && id == nil
	o.Logger = s.log.With("part", "bucket")
	st, err := bucket.New(s.st, o)
	if err != nil {
		return err
	}
	s.st = st
	s.reg.MustRegister(bucketMetrics{st})
	s.log.Info("object storage is behind the drives", "endpoint", b.Endpoint, "bucket", b.Bucket, "prefix", b.Prefix)
	return nil
}

// readKey reads a key of 64 hexadecimal digits. Its errors say nothing of what is in the file.
func readKey(path string) ([]byte, error) {
	text, err := readFile(path, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != bucket.KeySize {
		return nil, errors.New("it has to be 64 hexadecimal digits (openssl rand -hex 32)")
	}
	return key, nil
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
		"Blocks over a budget; fetched ones that the store declined; failed calls; what could not be read.",
		[]string{"what"}, nil)
	descBucketUp = prometheus.NewDesc("skep_bucket_up", "1: the last call of object storage was answered.", nil, nil)
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
}
