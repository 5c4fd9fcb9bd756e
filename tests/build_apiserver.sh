#!/bin/sh
# `make kube`: build the kube-apiserver of Debian's source package of Kubernetes into the folder that
# is named, unless it is there. Needs apt, the packages of Debian below, and minutes of one core.
# What it fetches and builds with lies in the same folder; the system's list of sources is read, and
# not changed.
set -eu
work=$(mkdir -p "$1" && cd "$1" && pwd)
test ! -x "$work/kube-apiserver" || exit 0
for program in apt-get dpkg-source go rsync; do
    command -v $program >/dev/null || {
        echo "$program is missing: install Debian's packages golang-go, rsync and dpkg-dev" >&2
        exit 2
    }
done
# The one that Kubernetes 1.20 brings reads maps as Go before 1.18 had them: a server that is built
# with it and a newer Go crashes at the first custom resource.
reflect=/usr/share/gocode/src/github.com/modern-go/reflect2
test -d $reflect || {
    echo "$reflect is missing: install Debian's package golang-github-modern-go-reflect2-dev" >&2
    exit 2
}

keys=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$work/lists/partial"
apt-get indextargets --format "deb-src [signed-by=$keys] \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" \
    "Created-By: Packages" "Origin: Debian" | sort -u >"$work/sources.list"
cd "$work"
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
rm -rf kubernetes-*
apt update
apt --only-source source kubernetes >/dev/null
mv kubernetes-*/ kubernetes
rm -r kubernetes/vendor/github.com/modern-go/reflect2
cp -r $reflect kubernetes/vendor/github.com/modern-go/reflect2

# Its own scripts build in a GOPATH, without modules, and know the version, which Helm asks for.
mkdir -p go/src/k8s.io
ln -sfn "$work/kubernetes" go/src/k8s.io/kubernetes
export GOPATH="$work/go" GOFLAGS=-p=1 CGO_ENABLED=0
cd go/src/k8s.io/kubernetes
echo "building kube-apiserver in $work, once: about 10 minutes ..."
nice make gen_openapi >"$work/build.log" 2>&1 && nice hack/make-rules/build.sh cmd/kube-apiserver \
    >>"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
mv _output/local/go/bin/kube-apiserver "$work/kube-apiserver"
cd "$work"
rm -rf kubernetes kubernetes_* go lists sources.list
