"""Public data sets that tasks read. All checksums are published.

Fashion-MNIST: zalandoresearch/fashion-mnist gives md5, and the files with these md5 have the sha256 below; MNIST and
CIFAR-10: Keras and TensorFlow Datasets; WikiText-2: salesforce's and its mirrors' copies.
"""

from suite.contract import PublicData, PublicFile

MNIST = PublicData(
    name="MNIST",
    base="https://storage.googleapis.com/cvdf-datasets/mnist/",
    files=(
        PublicFile(
            "train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        PublicFile(
            "train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
        ),
        PublicFile(
            "t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        PublicFile(
            "t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
        ),
    ),
    licence="CC BY-SA 3.0",
    page="http://yann.lecun.com/exdb/mnist/",
    command="suite data autoencoder --fetch task.data=mnist",
)
FASHION_MNIST = PublicData(
    name="Fashion-MNIST",
    base="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    files=(
        PublicFile(
            "train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
        ),
        PublicFile(
            "train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
        ),
        PublicFile(
            "t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
        ),
        PublicFile(
            "t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
        ),
    ),
    licence="MIT",
    page="https://github.com/zalandoresearch/fashion-mnist",
    command="suite data resnet50 --fetch",
    package="dataset-fashion-mnist",
    package_folder="/usr/share/datasets/fashion-mnist",
)
_BATCHES = [f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")]
CIFAR_10 = PublicData(
    name="CIFAR-10",
    base="https://www.cs.toronto.edu/~kriz/",
    files=(
        PublicFile(
            "cifar-10-python.tar.gz",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            members={batch: batch for batch in _BATCHES},
        ),
    ),
    licence="none stated; do not pass it on, and cite Krizhevsky 2009",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    command="suite data cifar10 --fetch",
)
WIKITEXT_2 = PublicData(
    name="WikiText-2",
    base="https://wikitext.smerity.com/",
    files=(
        PublicFile(
            "wikitext-2-raw-v1.zip",
            4_721_645,
            "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            members={f"wikitext-2-raw/wiki.{split}.raw": f"wiki.{split}.txt" for split in ("train", "valid", "test")},
        ),
    ),
    licence="CC BY-SA 3.0 and GFDL",
    page="https://huggingface.co/datasets/Salesforce/wikitext",
    command="suite data bert --fetch",
)
