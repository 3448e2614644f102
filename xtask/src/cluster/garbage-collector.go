// Kubernetes' garbage collector without the other controllers: it deletes objects whose owners are deleted.
// It exits when its parent process does.
package main

import (
	"log"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: garbage-collector KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	objects := metadata.NewForConfigOrDie(config)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	typed := informers.NewSharedInformerFactory(client, 0)
	untyped := metadatainformer.NewSharedInformerFactory(objects, 0)
	started := make(chan struct{})
	collector, err := garbagecollector.NewGarbageCollector(client, objects, mapper, map[schema.GroupResource]struct{}{}, informerfactory.NewInformerFactory(typed, untyped), started)
	if err != nil {
		log.Fatal(err)
	}
	forever := make(chan struct{})
	// A periodic sync finds kinds that are installed later.
	go collector.Sync(client.Discovery(), time.Second, forever)
	typed.Start(forever)
	untyped.Start(forever)
	close(started)
	collector.Run(2, forever)
}
