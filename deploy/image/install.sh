#!/bin/sh
# The steps of deploy/Dockerfile: venv | wheels FILE | penstock FOLDER | tidy | slim; then options for pip.
set -eu
home=/opt/penstock
step=$1
shift
case $step in
venv)
    python3 -m venv "$home"
    ;;
wheels)
    file=$1
    shift
    "$home/bin/pip" install --require-hashes --no-deps --only-binary :all: "$@" -r "$file"
    ;;
penstock)
    folder=$1
    shift
    # What builds its wheel is pinned too, and stays in this stage.
    python3 -m venv /opt/build
    /opt/build/bin/pip install --require-hashes --no-deps --only-binary :all: "$@" -r "${0%/*}/build.txt"
    /opt/build/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /tmp/wheel "$folder"
    "$home/bin/pip" install --no-deps --no-index /tmp/wheel/*.whl
    ;;
tidy)
    cd "$home/lib"/python3.*/site-packages
    # Headers, libraries for linking and tests of others.
    rm -rf pyarrow/include pyarrow/src pyarrow/tests pyarrow/*.pxd pyarrow/includes
    find . -type d -name tests -path './*/*' -prune -exec rm -rf {} +
    find . -type f \( -name '*.a' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxi' -o -name '*.cc' \) -delete
    # The package list of the image.
    "$home/bin/pip" list --format freeze | tr = " " | tr -s " " >"$home/packages.txt"
    ;;
slim)
    # Parts of Arrow for Flight and its own S3, which nothing of penstock loads; what installs
    # packages; what tokenizers downloads with, where it is given a name in place of a file; and the
    # colours of tracebacks.
    cd "$home/lib"/python3.*/site-packages
    "$home/bin/pip" uninstall --quiet --yes \
        hf-xet huggingface-hub httpx2 httpcore2 h11 anyio truststore tqdm filelock pygments
    rm -rf pyarrow/*flight* pyarrow/*_s3* pyarrow/_s3fs* \
        pip pip-* setuptools* pkg_resources _distutils_hack
    rm -f "$home"/bin/pip*
    gone='hf-xet|huggingface[-_]hub|httpx2|httpcore2|h11|anyio|truststore|tqdm|filelock|pip|setuptools|pygments'
    sed -i -E "/^($gone) /d" "$home/packages.txt"
    ;;
*)
    echo "no such step: $step" >&2
    exit 2
    ;;
esac
