package serve

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// The fields of Kubernetes' API that the manifests use, by the names and types it gives them
// (core/v1, apps/v1, policy/v1). No cluster is asked: what is strict about this is that any other name, or
// a value of another type, is refused.
type (
	k8sMeta struct {
		Name   string
		Labels map[string]string
	}
	k8sSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	k8sProbe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int32                       `yaml:"periodSeconds"`
		FailureThreshold int32                       `yaml:"failureThreshold"`
	}
	k8sResources struct {
		Requests, Limits map[string]string
	}
	k8sContainer struct {
		Name, Image string
		Args        []string
		Env         []struct {
			Name, Value string
			ValueFrom   struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int32 `yaml:"containerPort"`
		}
		Startup         k8sProbe `yaml:"startupProbe"`
		Readiness       k8sProbe `yaml:"readinessProbe"`
		Liveness        k8sProbe `yaml:"livenessProbe"`
		Resources       k8sResources
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   *bool `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Add, Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	k8sPod struct {
		TerminationGracePeriodSeconds int64 `yaml:"terminationGracePeriodSeconds"`
		Affinity                      struct {
			PodAntiAffinity struct {
				Required []struct {
					TopologyKey   string      `yaml:"topologyKey"`
					LabelSelector k8sSelector `yaml:"labelSelector"`
				} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `yaml:"podAntiAffinity"`
		}
		SecurityContext struct {
			RunAsNonRoot        bool                  `yaml:"runAsNonRoot"`
			RunAsUser           int64                 `yaml:"runAsUser"`
			FSGroup             int64                 `yaml:"fsGroup"`
			FSGroupChangePolicy string                `yaml:"fsGroupChangePolicy"`
			SeccompProfile      struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		NodeSelector map[string]string `yaml:"nodeSelector"`
		Tolerations  []struct{ Key, Operator string }
		Containers   []k8sContainer
		Volumes      []struct {
			Name      string
			ConfigMap *struct{ Name string } `yaml:"configMap"`
			Secret    *struct {
				SecretName  string `yaml:"secretName"`
				DefaultMode int32  `yaml:"defaultMode"`
				Items       []struct{ Key, Path string }
			}
			HostPath *struct{ Path, Type string } `yaml:"hostPath"`
			EmptyDir *struct {
				Medium    string
				SizeLimit string `yaml:"sizeLimit"`
			} `yaml:"emptyDir"`
		}
	}
)

// k8sKinds makes what each kind decodes into.
var k8sKinds = map[string]func() any{
	"v1 ConfigMap": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Data       map[string]string
		}{}
	},
	"v1 Service": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Spec       struct {
				ClusterIP       string `yaml:"clusterIP"`
				PublishNotReady bool   `yaml:"publishNotReadyAddresses"`
				Selector        map[string]string
				Ports           []struct {
					Name string
					Port int32
				}
			}
		}{}
	},
	"apps/v1 StatefulSet": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Spec       struct {
				ServiceName string `yaml:"serviceName"`
				Replicas    int32
				Management  string `yaml:"podManagementPolicy"`
				Selector    k8sSelector
				Template    struct {
					Metadata k8sMeta
					Spec     k8sPod
				}
				VolumeClaimTemplates []struct {
					Metadata k8sMeta
					Spec     struct {
						AccessModes      []string `yaml:"accessModes"`
						StorageClassName string   `yaml:"storageClassName"`
						Resources        k8sResources
					}
				} `yaml:"volumeClaimTemplates"`
			}
		}{}
	},
	"apps/v1 DaemonSet": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Spec       struct {
				Selector k8sSelector
				Template struct {
					Metadata k8sMeta
					Spec     k8sPod
				}
			}
		}{}
	},
	"v1 Pod": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Spec       k8sPod
		}{}
	},
	"policy/v1 PodDisruptionBudget": func() any {
		return &struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   k8sMeta
			Spec       struct {
				MaxUnavailable int32 `yaml:"maxUnavailable"`
				Selector       k8sSelector
			}
		}{}
	},
}

func TestKubernetesManifestsHaveOnlyFieldsThatExist(t *testing.T) {
	t.Parallel()
	for name, kinds := range map[string]int{"skep.yaml": 4, "cluster.yaml": 4, "daemonset.yaml": 2, "engine.yaml": 1} {
		onlyFieldsThatExist(t, read(t, filepath.Join(deploy, "kubernetes", name)), kinds)
	}
}

func onlyFieldsThatExist(t *testing.T, text string, kinds int) {
	seen := 0
	for _, doc := range strings.Split(text, "\n---\n") {
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
		}
		require.NoError(t, yaml.Unmarshal([]byte(doc), &head))
		make, ok := k8sKinds[head.APIVersion+" "+head.Kind]
		require.True(t, ok, "%v", head)
		d := yaml.NewDecoder(strings.NewReader(doc))
		d.KnownFields(true)
		require.NoError(t, d.Decode(make()), head.Kind)
		require.ErrorIs(t, d.Decode(new(any)), io.EOF)
		seen++
	}
	require.Equal(t, kinds, seen)
}
